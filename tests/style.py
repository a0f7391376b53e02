#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the outside of every C++ file: licence line, `#pragma once`, length, and that the tests are all listed.

    tests/style.py [ROOT]
    tests/style.py --self-test
"""
import os
import re
import sys

import selftest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LICENCE = "// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception"
FOLDERS = ("include", "examples", "tests", "benchmarks")
LONGEST_LINE, LONGEST_HEADER = 120, 500


def sources(root):
    for top in FOLDERS:
        for folder, _, files in os.walk(os.path.join(root, top)):
            for file in sorted(files):
                if file.endswith((".hpp", ".cuh", ".cpp", ".cu")):
                    yield os.path.relpath(os.path.join(folder, file), root)


def check(root):
    wrong = []
    listed = ""
    for top in FOLDERS:
        path = os.path.join(root, top, "meson.build")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                listed += file.read()
    for source in sources(root):
        with open(os.path.join(root, source), encoding="utf-8") as file:
            lines = file.read().split("\n")
        expectations = source.startswith("tests/compile_fail/")
        if LICENCE not in (lines if expectations else lines[:1]):
            wrong.append(f"{source}:1: the first line is the SPDX line")
        if source.endswith(".hpp") and "#pragma once" not in lines:
            wrong.append(f"{source}: has no '#pragma once'")
        if source.startswith("include/") and len(lines) > LONGEST_HEADER:
            wrong.append(f"{source}: has {len(lines)} lines, and {LONGEST_HEADER} is the most")
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST_LINE and not expectations:
                wrong.append(f"{source}:{number}: has {len(line)} columns, and {LONGEST_LINE} is the most")
            if line != line.rstrip() or "\t" in line:
                wrong.append(f"{source}:{number}: has a tab, or a space at its end")
        stem = re.sub(r"_test$", "", os.path.splitext(os.path.basename(source))[0])
        if source.endswith(".cpp") and "/consumers/" not in source and f"'{stem}" not in listed:
            wrong.append(f"{source}: is named in no list of {source.split('/')[0]}/meson.build: it is never built")
    return wrong


def self_test():
    good = {
        "include/distx/core/a.hpp": LICENCE + "\n#pragma once\n",
        "tests/core/a_test.cpp": LICENCE + "\nint i;\n",
        "tests/compile_fail/b.cpp": "// expect: no\n" + LICENCE + "\n",
        "tests/meson.build": "['a', 'b']\n",
    }
    header = "include/distx/core/a.hpp"
    broken = {
        "licence": ({header: "#pragma once\n"}, "SPDX"),
        "guard": ({header: LICENCE + "\n"}, "#pragma once"),
        "long": ({header: good[header] + "\n" * 500}, "is the most"),
        "wide": ({header: good[header] + "//" + "x" * 119 + "\n"}, "columns"),
        "space": ({header: good[header] + "int i; \n"}, "a space at its end"),
        "tab": ({header: good[header] + "\tint i;\n"}, "a tab"),
        "unlisted": ({"tests/core/c_test.cpp": LICENCE + "\n"}, "named in no list"),
    }
    return selftest.of_trees(check, good, broken)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    wrong = check(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
