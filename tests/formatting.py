#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that all C++ files are formatted by the repository's .clang-format, with exactly the pinned version of clang-format.

    tests/formatting.py [--fix]     skipped, with the reason, where that version is not installed (tools/test installs it)
    tests/formatting.py --self-test
"""
import os
import re
import shutil
import subprocess
import sys

import selftest
import style

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION = "18.1.8"


def find():
    """The path of the pinned clang-format, or None."""
    for path in (os.path.join(ROOT, "build", "clang-format", "bin", "clang-format"), shutil.which("clang-format"),
                 shutil.which("clang-format-18")):
        if path and os.path.exists(path):
            words = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if f" {VERSION}" in words:
                return path
    return None


def check(root, program, fix=False):
    paths = [path for path in style.sources(root) if not path.startswith("tests/compile_fail/")]  # their first lines count
    command = [program, "--style=file", *(["-i"] if fix else ["--dry-run"]), *paths]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        return [done.stderr.strip()]
    found = dict.fromkeys(re.findall(r"^([^:\n]+:\d+):\d+: warning: code should be clang-formatted", done.stderr, re.MULTILINE))
    return [f"{place}: is not formatted: run tests/formatting.py --fix" for place in found]


def self_test(program):
    with open(os.path.join(ROOT, ".clang-format"), encoding="utf-8") as file:
        rules = file.read()
    good = {".clang-format": rules, "include/distx/core/a.hpp": "int f(int a);\n", "tests/compile_fail/b.cpp": "int  i;\n"}
    broken = {
        "spaces": ({"include/distx/core/a.hpp": "int f( int a );\n"}, "a.hpp:1: is not formatted"),
        "another folder": ({"tests/core/c.cpp": "int  i;\n"}, "tests/core/c.cpp:1: is not formatted"),
        "kernels": ({"tests/core/c.cu": "int  i;\n"}, "tests/core/c.cu:1: is not formatted"),
    }
    return selftest.of_trees(lambda root: check(root, program), good, broken)


def main():
    program = find()
    if not program:
        print(f"skipped: clang-format {VERSION} is not installed (pip install clang-format=={VERSION})")
        return 77
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test(program) else 0
    wrong = check(ROOT, program, sys.argv[1:] == ["--fix"])
    print("\n".join([*wrong, f"{len(wrong)} findings"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
