#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the form of every C++ file: licence line, `#pragma once`, lengths, and that a meson.build lists it.

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
# An entry of a meson.build; a comment matches too, without a group.
LISTED = re.compile(r"#[^\n]*|'([^'\n]*\.(?:cpp|cu))'")


def sources(root):
    for top in FOLDERS:
        for folder, _, files in os.walk(os.path.join(root, top)):
            for file in sorted(files):
                if file.endswith((".hpp", ".cuh", ".cpp", ".cu")):
                    yield os.path.relpath(os.path.join(folder, file), root)


def build_files(root):
    """The text of every meson.build, by path."""
    found = {}
    for top in FOLDERS:
        for folder, _, files in os.walk(os.path.join(root, top)):
            if "meson.build" in files:
                path = os.path.join(folder, "meson.build")
                with open(path, encoding="utf-8") as file:
                    found[os.path.relpath(path, root)] = file.read()
    return found


def entries(path, text):
    """What a meson.build lists: (start and end in the text, paths from the root on that the entry can mean)."""
    for found in LISTED.finditer(text):
        if found.group(1):
            folder = os.path.dirname(path)
            yield found.span(), {os.path.normpath(os.path.join(place, found.group(1))) for place in (folder, "")}


def unlisted(compiled, builds):
    """The compiled files that no meson.build lists by their exact path."""
    listed = set()
    for path, text in builds.items():
        for _, paths in entries(path, text):
            listed |= paths
    return [source for source in compiled if source not in listed]


def check(root):
    wrong = []
    for source in unlisted([file for file in sources(root) if file.endswith((".cpp", ".cu"))], build_files(root)):
        wrong.append(f"{source}: is listed in no meson.build: add '{os.path.basename(source)}' to the one of its folder")
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
    return wrong


def self_test():
    good = {
        "include/distx/core/a.hpp": LICENCE + "\n#pragma once\n",
        "tests/core/a_test.cpp": LICENCE + "\nint i;\n",
        "tests/compile_fail/b.cpp": "// expect: no\n" + LICENCE + "\n",
        "tests/core/meson.build": "files('a_test.cpp')\n",
        "tests/meson.build": "['compile_fail/b.cpp']\n",
    }
    header = "include/distx/core/a.hpp"
    broken = {
        "licence": ({header: "#pragma once\n"}, "SPDX"),
        "guard": ({header: LICENCE + "\n"}, "#pragma once"),
        "long": ({header: good[header] + "\n" * 500}, "is the most"),
        "wide": ({header: good[header] + "//" + "x" * 119 + "\n"}, "columns"),
        "space": ({header: good[header] + "int i; \n"}, "a space at its end"),
        "tab": ({header: good[header] + "\tint i;\n"}, "a tab"),
        "unlisted": ({"tests/core/c_test.cpp": LICENCE + "\n"}, "c_test.cpp: is listed in no meson.build"),
        "another folder's": ({"tests/memory/a_test.cpp": LICENCE + "\n"}, "memory/a_test.cpp: is listed in no"),
        "a longer name": ({"tests/core/test.cpp": LICENCE + "\n"}, "core/test.cpp: is listed in no"),
        "commented out": ({"tests/core/meson.build": "# files('a_test.cpp')\n"}, "a_test.cpp: is listed in no"),
    }
    return selftest.of_trees(check, good, broken) + removals(ROOT)


def removals(root):
    """Removes each file of this tree from the build files in turn; returns how many removals go unnoticed."""
    builds = build_files(root)
    compiled = [file for file in sources(root) if file.endswith((".cpp", ".cu"))]
    failed = 0
    for source in compiled:
        without = {}
        for path, text in builds.items():
            for (start, end), paths in reversed(list(entries(path, text))):
                if source in paths:
                    text = text[:start] + text[end:]
            without[path] = text
        if unlisted(compiled, without) != [source]:
            failed += 1
            print(f"self-test failed: nothing is said when {source} is removed from the lists")
    print(f"{len(compiled)} entries removed in turn, {failed} unnoticed")
    return failed


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    wrong = check(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    for sentence in wrong:
        print(sentence)
    print(f"{len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
