#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Counts what include/distx weighs: lines of code, without blanks and comments, and preprocessor conditions.

    tests/lines.py [ROOT] [--depth 1]   a table by module, or by folder to that depth
    tests/lines.py --limits             status 1 if there are more conditions than CONDITIONS per thousand lines

Code of a module is in its folder and in its entry header.
"""
import argparse
import collections
import os
import re
import sys

import layering

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONDITIONS = 0.7


def lines_of(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def count(root, depth):
    """({folder: lines}, the number of conditions)"""
    lines, conditions = collections.Counter(), 0
    for header in layering.headers(root):
        text = layering.read(root, header)
        folder = os.path.dirname(header) or layering.module_of(header)
        lines["/".join(folder.split("/")[:depth])] += lines_of(text)
        conditions += len(layering.CONDITION.findall(text))
    return lines, conditions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", default=ROOT)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--limits", action="store_true")
    options = parser.parse_args()
    lines, conditions = count(options.root, options.depth)
    for folder, number in lines.most_common():
        print(f"{number:7} {folder}")
    total = sum(lines.values())
    print(f"{total:7} lines, {conditions} conditions: {1000 * conditions / total:.2f} per thousand")
    return 1 if options.limits and conditions > CONDITIONS * total / 1000 else 0


if __name__ == "__main__":
    sys.exit(main())
