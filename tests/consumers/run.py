#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds and runs a small project that uses distx, the way its users would.

    tests/consumers/run.py subproject|pkg-config|cmake|fetch-content|conan FILE…
    tests/consumers/run.py mixed FILE…    a program of which one file is in the header-only form, and one in the compiled form

distx is installed into a separate folder first; for `subproject` it is linked into the project, and for `fetch-content`
included by it; for `conan` it is made a package. FILE… are serial.cpp and, if distx over MPI is to be used too, mpi.cpp, which runs on two
ranks.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MESON = shutil.which("meson")


def run(*command, **options):
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **options)
    if done.returncode:
        print(done.stdout, flush=True)
        sys.exit(f"'{command[0]}' ended with status {done.returncode}")
    return done.stdout


def install(folder, mpi):
    """Installs distx below `folder` and returns the prefix. The default options, but without tests and examples."""
    prefix, build = os.path.join(folder, "prefix"), os.path.join(folder, "distx")
    off = ["-Dtests=disabled", "-Dexamples=disabled"]
    run(MESON, "setup", build, ROOT, "--prefix", prefix, f"-Dmpi={'enabled' if mpi else 'disabled'}", *off)
    run(MESON, "install", "-C", build)
    for needed in ("include/distx/distx.hpp", "share/cmake/distx/distxConfig.cmake", "bin/distx-ranks",
                   "bin/distx-run", "bin/distx-flight", "bin/distx-checkpoint"):
        if not os.path.exists(os.path.join(prefix, needed)):
            sys.exit(f"'meson install' did not install {needed}")
    built = glob.glob(os.path.join(build, "**", "*.o"), recursive=True)
    if built:
        sys.exit(f"'meson install' compiled {len(built)} files, such as {built[0]}: it must not build benchmarks")
    run(os.path.join(prefix, "bin", "distx-ranks"), "2", "true")
    run(os.path.join(prefix, "bin", "distx-run"), "-n", "2", "true")
    return prefix


def run_programs(folder, mpi):
    print(run(os.path.join(folder, "serial")), end="")
    if mpi:
        launcher = os.path.join(os.path.dirname(HERE), "mpirun")
        output = run(launcher, "2", os.path.join(folder, "mpi"))
        print(output, end="")
        if sorted(line for line in output.splitlines() if line.startswith("rank ")) != ["rank 0 of 2: 2", "rank 1 of 2: 2"]:
            sys.exit("two ranks must print 'rank 0 of 2: 2' and 'rank 1 of 2: 2'")


def subproject(folder, mpi):
    project = os.path.join(folder, "project")
    shutil.copytree(os.path.join(HERE, "subproject"), project)
    for program in ("serial.cpp", "mpi.cpp"):
        shutil.copy(os.path.join(HERE, program), project)
    distx = os.path.join(project, "subprojects", "distx")
    os.makedirs(distx)
    for part in ("meson.build", "meson_options.txt", "include"):
        os.symlink(os.path.join(ROOT, part), os.path.join(distx, part))
    build = os.path.join(folder, "build")
    # Optimizing the library takes a minute; these flags come after its own.
    run(MESON, "setup", build, project, "-Dcpp_args=-O0", f"-Ddistx:mpi={'enabled' if mpi else 'disabled'}")
    run(MESON, "compile", "-C", build, "-j1")
    run_programs(build, mpi)


def pkg_config(folder, mpi):
    prefix = install(folder, mpi)
    places = [os.path.dirname(file) for file in glob.glob(os.path.join(prefix, "**", "distx.pc"), recursive=True)]
    environment = dict(os.environ, PKG_CONFIG_PATH=os.pathsep.join(places))
    for program, name in [("serial", "distx")] + ([("mpi", "distx-mpi")] if mpi else []):
        flags = run("pkg-config", "--cflags", "--libs", name, env=environment).split()
        source, target = os.path.join(HERE, program + ".cpp"), os.path.join(folder, program)
        sources = [source]
        if program == "serial":  # in the compiled form, which the other kinds use in mpi.cpp
            place = run("pkg-config", "--variable=compileddir", name, env=environment).strip()
            sources += [os.path.join(place, part + ".cpp") for part in ("comm", "tensor", "training")]
            flags = ["-DDISTX_COMPILED=extern", *flags]
        run(os.environ.get("CXX", "g++"), "-std=c++20", *sources, "-o", target, *flags)
    run_programs(folder, mpi)


def installed_files(prefix):
    """The paths below `prefix`; pkg-config's files are left out, which Meson alone installs."""
    return {os.path.relpath(os.path.join(folder, file), prefix) for folder, _, files in os.walk(prefix) for file in files
            if not file.endswith(".pc")}


def require_cmake():
    if not shutil.which("cmake"):
        print("skipped: there is no cmake on PATH")
        sys.exit(77)


def build_with_cmake(folder, source, mpi, *definitions):
    build = os.path.join(folder, "build")
    fast = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0"]  # optimizing the library takes a minute
    run("cmake", "-G", "Ninja", "-S", os.path.join(HERE, source), "-B", build, f"-DWITH_MPI={'ON' if mpi else 'OFF'}", *fast, *definitions)
    run("cmake", "--build", build)
    run_programs(build, mpi)


def cmake(folder, mpi):
    require_cmake()
    prefix = install(folder, mpi)
    by_cmake, build = os.path.join(folder, "prefix-by-cmake"), os.path.join(folder, "install")
    run("cmake", "-S", ROOT, "-B", build, f"-DCMAKE_INSTALL_PREFIX={by_cmake}")
    run("cmake", "--install", build)
    differing = installed_files(prefix) ^ installed_files(by_cmake)
    if differing:
        sys.exit(f"'meson install' and 'cmake --install' install different files: {', '.join(sorted(differing))}")
    moved = by_cmake + "-moved"  # a package knows its own place
    os.rename(by_cmake, moved)
    build_with_cmake(folder, "cmake", mpi, f"-DCMAKE_PREFIX_PATH={moved}")


def fetch_content(folder, mpi):
    require_cmake()
    build_with_cmake(folder, "fetch_content", mpi, f"-DDISTX_SOURCE={ROOT}")


def conan(folder, mpi):
    require_cmake()
    own = os.path.join(ROOT, "build", "conan", "bin", "conan")
    command = own if os.path.exists(own) else shutil.which("conan")
    if not command:
        print("skipped: there is no conan on PATH (pip install conan)")
        sys.exit(77)
    os.environ["CONAN_HOME"] = os.path.join(folder, "conan-home")
    run(command, "profile", "detect")
    version = re.search(r"distx/[\d.]+", run(command, "create", ROOT, cwd=folder)).group()
    # Not in the tree, whose CMakeLists.txt would be given presets.
    run(command, "install", "--requires", version, "--generator", "CMakeToolchain", "--output-folder", folder, cwd=folder)
    build_with_cmake(folder, "cmake", mpi, f"-DCMAKE_TOOLCHAIN_FILE={os.path.join(folder, 'conan_toolchain.cmake')}")


def mixed(folder, _):
    """Both forms in one program: they share nothing, and an object of one is an undefined symbol in the other."""
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O0", "-I", os.path.join(ROOT, "include"), "-pthread"]
    def compiled(name, source, *flags):
        target = os.path.join(folder, name + ".o")
        run(*compiler, *flags, "-c", source, "-o", target)
        return target
    here, form = os.path.join(HERE, "mixed"), "-DDISTX_COMPILED=extern"
    common = [compiled("compiled", os.path.join(here, "compiled.cpp"), form),
              compiled("library", os.path.join(ROOT, "include", "distx", "compiled", "comm.cpp"), form)]
    program = os.path.join(folder, "mixed")
    run(*compiler, compiled("header_only", os.path.join(here, "header_only.cpp")), *common, "-o", program)
    output = run(program)
    print(output, end="")
    if output != "rank 0: 2 3\n":
        sys.exit("it must print 'rank 0: 2 3'")
    passing = compiled("passing", os.path.join(here, "header_only.cpp"), "-DPASS_AN_OBJECT")
    linked = subprocess.run([*compiler, passing, *common, "-o", program], capture_output=True, text=True, check=False)
    symbol = r"rank_of\(distx::v\d+_\d+_\d+_{}::SerialCommunicator const&\)"
    if linked.returncode == 0 or not re.search(symbol.format("header_only"), linked.stderr):
        sys.exit(f"linking a program that passes an object between the forms must fail for its symbol:\n{linked.stderr}")
    if not re.search(symbol.format("compiled"), run("nm", "-C", common[0])):
        sys.exit("the symbol of the function that takes the object must name its form")


def main():
    kinds = {"subproject": subproject, "pkg-config": pkg_config, "cmake": cmake, "fetch-content": fetch_content, "conan": conan, "mixed": mixed}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    names = [os.path.basename(file) for file in options.files]
    needed = {"compiled.cpp", "header_only.cpp"} if options.kind == "mixed" else {"serial.cpp"}
    if not needed <= set(names):
        parser.error(f"needs the files {', '.join(sorted(needed))}")
    with tempfile.TemporaryDirectory() as folder:
        kinds[options.kind](folder, "mpi.cpp" in names)


if __name__ == "__main__":
    main()
