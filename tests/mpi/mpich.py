#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the conformance suite with MPICH, in addition to the MPI of the build, and runs it on 1 to 3 ranks.

    tests/mpi/mpich.py BUILD_FOLDER LIBCONFORMANCE

Debian's Boost.MPI is built with Open MPI: this compiles what distx uses of it with MPICH, from Debian's source package. Of distx's
libraries, only that of its mpi module is compiled with MPICH; the others are those of BUILD_FOLDER. What is built stays in
BUILD_FOLDER/mpich.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PARTS = ("environment", "error_string", "exception", "mpi_datatype_cache")  # of Boost.MPI
RANKS = (1, 2, 3)
FLAGS = ("-O1", "-w", "-pthread", "-DMPICH_SKIP_MPICXX")


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(77)


def run(*words, folder=None, seconds=300):
    return subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=seconds)


def version():
    """Returns such as (4, 0); what is absent is older than all."""
    found = re.search(r"MPICH Version:\s+(\d+)\.(\d+)", run("mpichversion").stdout if shutil.which("mpichversion") else "")
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def boost_version():
    header = pathlib.Path("/usr/include/boost/version.hpp")
    found = re.search(r'BOOST_LIB_VERSION "(\d+)_(\d+)', header.read_text(encoding="utf-8")) if header.exists() else None
    return ".".join(found.groups()) if found else skip("Debian's headers of Boost are absent (libboost-mpi-dev)")


def fetch(folder):
    """Puts libs/mpi/src of Debian's Boost into `folder`; needs no entry in sources.list, and not root."""
    if shutil.which("apt-get") is None:
        skip("Boost.MPI is built from Debian's source package, and there is no apt-get")
    # Where the headers came from, their source is.
    targets = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages").stdout
    sources = sorted({line for line in targets.splitlines() if line.endswith(" main")})
    if not sources:
        skip("apt-get knows no archive (run apt-get update)")
    work = folder / "source"
    (work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text("".join(f"deb-src {line}\n" for line in sources), encoding="utf-8")
    get = ("apt-get", "-q", "-o", f"Dir::Etc::sourcelist={work}/sources.list", "-o", "Dir::Etc::sourceparts=-", "-o",
           f"Dir::State::lists={work}/lists", "-o", f"Dir::Cache={work}", "-o", "APT::Sandbox::User=root")
    for words in (("update",), ("source", "--download-only", "boost" + boost_version())):
        done = run(*get, *words, folder=work, seconds=400)
        if done.returncode != 0:
            skip(f"apt-get {' '.join(words)} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    archives = list(work.glob("*.orig.tar.*z*"))
    if not archives:
        skip("Debian's source package of Boost has no archive that is known here")
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            if re.fullmatch(r"[^/]+/libs/mpi/src/\w+\.cpp", member.name):
                (folder / pathlib.Path(member.name).name).write_bytes(archive.extractfile(member).read())
    shutil.rmtree(work)


def must(*words):
    done = run(*words)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def build(folder, name, sources, *flags, modules=(), libraries=(), uses=()):
    """Returns a program of these sources, distx's modules and others' libraries, in `folder`/mpich; it is built again if a source, a
    header or `uses` is newer."""
    for program in ("mpicxx.mpich", "mpirun.mpich"):
        if shutil.which(program) is None:
            skip(f"there is no {program} (packages mpich, libmpich-dev)")
    folder = pathlib.Path(folder).resolve()
    compiled, folder = folder / "include" / "distx" / "compiled", folder / "mpich"
    boost = folder / "boost"
    boost.mkdir(parents=True, exist_ok=True)
    if not all((boost / f"{part}.cpp").exists() for part in PARTS):
        fetch(boost)
    for part in PARTS:
        if not (boost / f"{part}.o").exists():
            must("mpicxx.mpich", *FLAGS, "-c", boost / f"{part}.cpp", "-o", boost / f"{part}.part")
            (boost / f"{part}.part").rename(boost / f"{part}.o")
    headers = max(file.stat().st_mtime for part in ("include", "tests", "examples") for file in (ROOT / part).rglob("*.hpp"))

    def made(target, sources, *words):
        if not target.exists() or target.stat().st_mtime < max(headers, *(file.stat().st_mtime for file in sources)):
            must("mpicxx.mpich", "-std=c++20", *FLAGS, "-DDISTX_COMPILED=extern", f"-I{ROOT}/include", *words, "-o", target)
        return target

    source = ROOT / "include" / "distx" / "compiled" / "mpi.cpp"
    mpi = made(folder / "mpi.o", [source], "-c", source)
    of_distx = [compiled / f"libdistx{module}.a" for module in (*(f"-{module}" for module in modules), "")]
    return made(folder / name, [*sources, *of_distx, *uses], *sources, mpi, *(boost / f"{part}.o" for part in PARTS), *flags,
                "-Wl,--start-group", *of_distx, "-Wl,--end-group", *libraries)


def main():
    library, tests = pathlib.Path(sys.argv[2]).resolve(), ROOT / "tests"
    program = build(sys.argv[1], "conformance", [tests / "mpi" / "main.cpp", tests / "conformance" / "mpi.cpp"],
                    f"-I{tests}", "-Wl,--whole-archive", library, "-Wl,--no-whole-archive", uses=[library])
    failed = 0
    for ranks in RANKS:
        done = subprocess.run([sys.executable, ROOT / "tests" / "mpirun", "--timeout", "120", str(ranks), program], check=False,
                              env={**os.environ, "MPIRUN": shutil.which("mpirun.mpich")}, stdin=subprocess.DEVNULL)
        print(f"{ranks} ranks of MPICH: {'passed' if done.returncode == 0 else f'failed ({done.returncode})'}", flush=True)
        failed += done.returncode != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
