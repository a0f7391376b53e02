#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs clang-tidy with the checks of .clang-tidy over all headers of include/distx, in one file.

    tests/headers/tidy.py --build FOLDER
    tests/headers/tidy.py --self-test
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

import check
import compilers

VERSION = compilers.OLDEST_CLANG  # newer ones have more checks


def find():
    for name in (f"clang-tidy-{VERSION}", "clang-tidy"):
        path = shutil.which(name)
        if path:
            words = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if re.search(rf"version {VERSION}\.", words):
                return path
    print(f"skipped: there is no clang-tidy {VERSION} on PATH")
    raise SystemExit(77)


def tidy(program, text, flags, headers):
    """Returns what clang-tidy finds; nothing if it finds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        unit = os.path.join(folder, "unit.cpp")
        with open(unit, "w", encoding="utf-8") as file:
            file.write(text)
        command = [program, "--quiet", f"--config-file={os.path.join(compilers.ROOT, '.clang-tidy')}",
                   f"--header-filter={re.escape(headers)}/.*", unit, "--", "-std=c++20", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def all_headers(program, build):
    text, flags = "", ["-I", os.path.join(compilers.ROOT, "include")]
    for header, more in check.usable(compilers.ROOT, build, check.SLOW):
        text += f"#include <distx/{header}>\n"
        # Boost.MPI defines one of these macros again, to nothing instead of 1.
        more = [flag + "=" if flag.startswith("-D") and "=" not in flag else flag for flag in more]
        flags += [flag for flag in more if flag not in flags or flag == "-isystem"]
    found = tidy(program, text, flags, os.path.join(compilers.ROOT, "include"))
    print(found or "clang-tidy finds nothing")
    return 1 if found else 0


def self_test(program):
    body = "inline double half(int i) {{ return {}; }}\n"
    failed = 0
    for result, wanted in (("i / 2.0", ""), ("i / 2", "bugprone-integer-division")):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "case.hpp"), "w", encoding="utf-8") as file:
                file.write(body.format(result))
            found = tidy(program, "#include <case.hpp>\n", ["-I", folder], folder)
        if (wanted not in found) or bool(wanted) != bool(found):
            failed += 1
            print(f"expected {wanted!r}, and found: {found}")
    return failed


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--build")
    arguments.add_argument("--self-test", action="store_true")
    options = arguments.parse_args()
    program = find()
    return self_test(program) if options.self_test else all_headers(program, options.build)


if __name__ == "__main__":
    sys.exit(main())
