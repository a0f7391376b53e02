#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures what `#include <distx/distx.hpp>` costs a compiler: seconds of processor time, the least of several tries.

    benchmarks/compile_time.py [--compiler g++] [--header distx/distx.hpp] [--limit 1.5] [--tries 5]

The status is 1 where it costs more than the limit. An empty file's cost is measured too, and not taken off.
"""
import argparse
import os
import resource
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def seconds(compiler, text):
    command = [compiler, "-std=c++20", "-O0", "-I", os.path.join(ROOT, "include"), "-x", "c++", "-", "-c", "-o", os.devnull]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input=text, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--header", default="distx/distx.hpp")
    parser.add_argument("--limit", type=float, default=1.5)
    parser.add_argument("--tries", type=int, default=5)
    options = parser.parse_args()
    measured = {}
    for name, text in (("an empty file", ""), (options.header, f"#include <{options.header}>\n")):
        measured[name] = min(seconds(options.compiler, text + "int main() {}\n") for _ in range(options.tries))
        print(f"{name}: {measured[name]:.2f} s ({options.compiler} -O0)")
    if measured[options.header] > options.limit:
        print(f"{options.header} costs {measured[options.header]:.2f} s, and {options.limit:g} s is the most")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
