#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks every header of include/distx by itself.

    tests/headers/check.py alone --compiler any --build FOLDER            each compiles alone, and twice in one file
    tests/headers/check.py twice --compiler g++|clang++ --build FOLDER    two files that include them all link together
    tests/headers/check.py self-test --compiler g++|clang++

A header that only a missing vendor's code includes is left out, and the output names it; so is one that nvcc alone
compiles.
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import compilers  # noqa: E402
import layering  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]


def compile_text(compiler, text, flags):
    command = [compiler, "-std=c++20", *WARNINGS, *flags, "-x", "c++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def beginning(words, lines=30):
    shown = words.splitlines()
    return "\n".join(shown[:lines] + ([f"… {len(shown) - lines} more lines"] if len(shown) > lines else []))


def usable(root, build):
    """Yields each header with its vendor's flags; those whose vendor is absent are named and left out."""
    cache = {}
    for header in layering.headers(root):
        if header.endswith(".cuh"):
            print(f"left out: {header} (nvcc compiles it)")
            continue
        room = layering.room_of(header)
        flags = []
        if room in layering.VENDORS:
            if room not in cache:
                cache[room] = compilers.vendor_flags(build, room) if build else None
            flags = cache[room]
        if flags is None:
            print(f"left out: {header} ({room} is absent or disabled)")
            continue
        yield header, flags


def alone(compiler, root, build):
    failed = 0
    for header, flags in usable(root, build):
        include = f"#include <distx/{header}>\n"
        done = compile_text(compiler, include + include, ["-I", os.path.join(root, "include"), *flags, "-fsyntax-only"])
        if done.returncode:
            failed += 1
            print(f"{header} does not compile alone:\n{beginning(done.stderr)}")
    return failed


def twice(compiler, root, build):
    text, flags = "", []
    for header, more in usable(root, build):
        text += f"#include <distx/{header}>\n"
        flags += [flag for flag in more if flag not in flags or flag == "-isystem"]
    with tempfile.TemporaryDirectory() as folder:
        unit = os.path.join(folder, "unit.o")
        done = compile_text(compiler, text, ["-I", os.path.join(root, "include"), *flags, "-c", "-o", unit])
        if done.returncode:
            print(f"the headers do not compile together:\n{beginning(done.stderr)}")
            return 1
        # `-r` joins objects without asking for what is defined elsewhere; what is defined in both is an error.
        done = subprocess.run([compiler, "-r", "-nostdlib", "-o", os.path.join(folder, "both.o"), unit, unit],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"a header defines what is not inline:\n{beginning(done.stderr)}")
            return 1
    return 0


def self_test(compiler):
    cases = {
        "good": ("#pragma once\n#include <vector>\ninline std::vector<int> f() { return {}; }\n", 0, 0),
        "needs another": ("#pragma once\nstd::vector<int> f();\n", 1, 1),
        "no guard": ("struct S {};\n", 1, 0),
        "warning": ("#pragma once\ninline int f(long i) { return i; }\n", 1, 1),
        "not inline": ("#pragma once\nint f() { return 1; }\n", 0, 1),
    }
    failed = 0
    for name, (text, expect_alone, expect_twice) in cases.items():
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "include/distx/core"))
            with open(os.path.join(root, "include/distx/core/case.hpp"), "w", encoding="utf-8") as file:
                file.write(text)
            got = (alone(compiler, root, None), twice(compiler, root, None))
            if got != (expect_alone, expect_twice):
                failed += 1
                print(f"self-test '{name}' failed: expected {(expect_alone, expect_twice)}, got {got}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["alone", "twice", "self-test"])
    parser.add_argument("--compiler", required=True, choices=["g++", "clang++", "any"])
    parser.add_argument("--build")
    options = parser.parse_args()
    compiler = compilers.find_or_skip(options.compiler)
    if options.what == "self-test":
        failed = self_test(compiler)
    else:
        failed = {"alone": alone, "twice": twice}[options.what](compiler, compilers.ROOT, options.build)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
