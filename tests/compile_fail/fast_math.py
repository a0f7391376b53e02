#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks which compiler flags distx refuses, and that its checks of NaN and infinity work where they are accepted.

    tests/compile_fail/fast_math.py --compiler g++|clang++ accepted_fast_math.cpp refused
    tests/compile_fail/fast_math.py --compiler g++|clang++ accepted_fast_math.cpp FLAG…    compiles and runs it with these flags
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import compilers  # noqa: E402

REFUSED = "distx: -ffast-math or a part of it changes the bits of results; add -fno-fast-math, or define DISTX_ACCEPT_FAST_MATH"
OLDER = "distx: this program is compiled as an older C++; add -std=c++20"
NEWER_CLANG = "distx: -ffast-math removes the checks for NaN and infinity with this clang"
ACCEPT = "-DDISTX_ACCEPT_FAST_MATH"
# What makes a compiler say in its macros that it changes results; clang tells only whether all is changed, or NaN and infinity.
TELLING = {
    "clang++": ["-ffast-math", "-Ofast", "-ffinite-math-only", "-O3 -ffast-math -fno-associative-math"],
    "g++": ["-ffast-math", "-Ofast", "-ffinite-math-only", "-fassociative-math -fno-signed-zeros -fno-trapping-math",
            "-funsafe-math-optimizations", "-fno-signed-zeros", "-freciprocal-math", "-ffast-math -fno-finite-math-only"],
}
HARMLESS = ["-O3", "-O3 -fno-math-errno -fno-trapping-math", "-ffast-math -fno-fast-math", "-Ofast -fno-fast-math"]


def run_compiler(compiler, *arguments):
    command = [compiler, "-std=c++20", "-I", os.path.join(compilers.ROOT, "include"), *arguments]
    return subprocess.run(command, env=dict(os.environ, LC_ALL="C"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)


def errors(compiler, *flags):
    header = os.path.join(compilers.ROOT, "include", "distx", "core", "error.hpp")
    done = run_compiler(compiler, *flags, "-fsyntax-only", "-x", "c++", header)
    return [line.split(" error: ", 1)[1].removeprefix("#error ") for line in done.stderr.splitlines() if " error: " in line]


def check_refusals(family, compiler):
    cases = [(flags, REFUSED) for flags in TELLING[family]]
    cases += [(f"{flags} {ACCEPT}", None) for flags in TELLING[family]] + [(flags, None) for flags in HARMLESS]
    if family == "clang++":
        newer = f"-U__clang_major__ -D__clang_major__=17 {ACCEPT}"
        cases += [(f"{newer} -ffast-math", NEWER_CLANG), (f"{newer} -ffast-math -fhonor-nans -fhonor-infinities", None)]
    wrong = 0
    if not (errors(compiler, "-std=c++17") or [""])[0].startswith(OLDER):  # more errors follow
        wrong += 1
        print("as C++17: the first error does not say what to do")
    for flags, sentence in cases:
        found = errors(compiler, *flags.split())
        if (found != []) if sentence is None else len(found) != 1 or not found[0].startswith(sentence):
            wrong += 1
            print(f"with {flags}: expected {sentence!r}, found {found}")
    print(f"{len(cases)} lists of flags, {wrong} wrong")
    return 1 if wrong else 0


def check_acceptance(compiler, source, flags):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        done = run_compiler(compiler, ACCEPT, *flags, source, "-pthread", "-lrt", "-o", program)
        if done.returncode:
            print(done.stderr)
            return 1
        return subprocess.run([program], stdin=subprocess.DEVNULL, check=False, timeout=120).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", required=True, choices=["g++", "clang++"])
    parser.add_argument("program")
    options, flags = parser.parse_known_args()
    compiler = compilers.find_or_skip(options.compiler)
    if flags == ["refused"]:
        return check_refusals(options.compiler, compiler)
    return check_acceptance(compiler, options.program, flags)


if __name__ == "__main__":
    sys.exit(main())
