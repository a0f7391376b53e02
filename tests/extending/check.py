#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Adds a collective to a copy of the headers by a patch, and checks it on every backend of host memory.

    tests/extending/check.py BUILD PROGRAM PATCH

docs/extending.md names the files that a new collective touches. This exercise adds `scan`, the reduction of the operands of
ranks 0 to r, and fails if it touches more than nine files, among them its case of the conformance suite.
If a change of the headers moves what the patch expects, apply it by hand to a copy, and write the difference here.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import compilers  # noqa: E402

MOST_FILES = 9


def main():
    build, source, patch = sys.argv[1:]
    with open(patch, encoding="utf-8") as text:
        touched = re.findall(r"^\+\+\+ b/(.+)$", text.read(), re.MULTILINE)
    print(f"a new collective touches {len(touched)} files: {', '.join(touched)}", flush=True)
    if len(touched) > MOST_FILES:
        sys.exit(f"more than {MOST_FILES}")
    flags = []
    for vendor in ("mpi", "gloo", "shm"):
        of_vendor = compilers.vendor_flags(build, vendor, libraries=True)
        if of_vendor is None:
            print(f"skipped: distx was configured without {vendor}")
            return 77
        flags += [flag for flag in of_vendor if not re.search(r"DISTX_COMPILED|libdistx", flag)]
    compiler = compilers.find_or_skip("any")
    with tempfile.TemporaryDirectory() as copy:
        for folder in ("include", "tests/conformance", "tests/comm"):
            shutil.copytree(os.path.join(compilers.ROOT, folder), os.path.join(copy, folder))
        subprocess.run(["git", "-C", copy, "apply", os.path.abspath(patch)], check=True)
        program = os.path.join(copy, "scan")
        includes = [f"-I{copy}/include", f"-I{copy}/tests", f"-I{compilers.ROOT}/tests"]
        command = [compiler, "-std=c++20", "-O0", "-w", *includes, source, "-o", program, *flags]
        subprocess.run(command, check=True)
        environment = dict({"DISTX_TEST_RANKS": "3"}, **os.environ)
        done = subprocess.run([program], env=environment, check=False).returncode
        launched = [os.path.join(os.path.dirname(HERE), "mpirun"), "3", program, "mpi"]
        return done or subprocess.run(launched, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
