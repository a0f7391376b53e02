# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compilers and flags for the test scripts that call a compiler themselves."""
import os
import re
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NEWEST_CLANG, OLDEST_CLANG, OLDEST_GCC = 30, 16, 12


def without_versions(text):
    """A compiler's messages without the inline namespace of distx's version and form, which g++ writes and clang++ does not."""
    return re.sub(r"\bv\d+_\d+_\d+_(compiled|header_only)::", "", text)


def version(compiler):
    words = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=False).stdout
    return int(re.match(r"\d*", words).group() or 0)


def warning_errors(compiler):
    """`-Werror` for the versions that distx is developed with; a newer compiler may warn of more."""
    wanted = OLDEST_CLANG if "clang" in os.path.basename(compiler) else OLDEST_GCC
    return ["-Werror"] if version(compiler) == wanted else []


def find(family):
    """Path of a `g++` or `clang++` new enough for distx, or None. The oldest that will do is taken, as it is the strictest."""
    if family == "g++":
        names = ["g++"] + [f"g++-{number}" for number in range(OLDEST_GCC, 30)]
        oldest = OLDEST_GCC
    else:
        names = [f"clang++-{number}" for number in range(OLDEST_CLANG, NEWEST_CLANG)] + ["clang++"]
        oldest = OLDEST_CLANG
    for name in names:
        path = shutil.which(name)
        if path and version(path) >= oldest:
            return path
    return None


def find_or_skip(family):
    """The compiler; for "any" the one that reads headers faster, of those there are."""
    compiler = (find("clang++") or find("g++")) if family == "any" else find(family)
    if not compiler:
        print(f"skipped: there is no {family} {OLDEST_CLANG if family == 'clang++' else OLDEST_GCC} or newer on PATH")
        raise SystemExit(77)
    return compiler


def vendor_flags(build, vendor, libraries=False):
    """Flags for a vendor from the pkg-config file that the build wrote for distx; None where the vendor is absent."""
    folder = os.path.join(build, "meson-uninstalled")
    name = f"distx-{vendor.replace('_', '-')}-uninstalled"
    if not os.path.exists(os.path.join(folder, name + ".pc")):
        return None
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PKG_CONFIG_PATH")]))
    words = subprocess.run(
        ["pkg-config", "--cflags", *(["--libs"] if libraries else []), name],
        env=dict(os.environ, PKG_CONFIG_PATH=path),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    own = os.path.join(ROOT, "include")
    result = []
    for word in words:
        if word.startswith("-I"):
            if os.path.realpath(word[2:]) != own:
                result += ["-isystem", word[2:]]
        else:
            result.append(word)
    return result
