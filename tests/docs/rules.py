#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that docs/rules.md is what the rules in the code give.

    tests/docs/rules.py PROGRAM            PROGRAM is built from tests/docs/rules.cpp
    tests/docs/rules.py PROGRAM --write    writes the page
"""
import difflib
import os
import subprocess
import sys

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "docs", "rules.md")


def main():
    wanted = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout
    if "--write" in sys.argv[2:]:
        with open(PAGE, "w", encoding="utf-8") as page:
            page.write(wanted)
        return 0
    with open(PAGE, encoding="utf-8") as page:
        found = page.read()
    difference = list(difflib.unified_diff(found.splitlines(), wanted.splitlines(), "docs/rules.md", "the code", lineterm=""))
    print("\n".join(difference[:40]))
    return 1 if difference or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
