#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks every header of include/distx by itself.

    tests/headers/check.py alone --compiler any --build FOLDER            each compiles alone, and twice in one file
    tests/headers/check.py alone --part 1/2 …                             every second of them
    tests/headers/check.py twice --compiler g++|clang++ --build FOLDER    two files that include them all link together
    tests/headers/check.py self-test --compiler g++|clang++

A header that only a missing vendor's code includes is left out, and the output names it; so is one that nvcc alone
compiles.

Of headers that include each other, one after the other, one file is made that includes first the header that includes none
of the others, last the one that includes all: each sees what it would see alone, since what comes before it is what it includes.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import compilers  # noqa: E402
import layering  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion"]

# A vendor whose headers take longer to compile than all others; its own tests compile ours together.
SLOW = ("torch", "torch_cuda")

# How a program sees the headers that declare the compiled part.
DECLARES = "-DDISTX_COMPILED=extern"

# The includes of a header before anything else.
INCLUDES = re.compile(r"(?:\s|//.*\n|#pragma once\n|#include .*\n)*")


def compile_text(compiler, text, flags):
    command = [compiler, "-std=c++20", *WARNINGS, *compilers.warning_errors(compiler), *flags, "-x", "c++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def beginning(words, lines=30):
    shown = words.splitlines()
    return "\n".join(shown[:lines] + ([f"… {len(shown) - lines} more lines"] if len(shown) > lines else []))


def usable(root, build, but=()):
    """Yields each header with its vendor's flags; those whose vendor is absent, or in `but`, are named and left out."""
    cache = {}
    for header in layering.headers(root):
        if header.endswith(".cuh"):
            print(f"left out: {header} (nvcc compiles it)")
            continue
        module = layering.module_of(header)
        flags = []
        if module in layering.VENDORS:
            if module not in cache:
                cache[module] = compilers.vendor_flags(build, module) if build else None
            flags = cache[module]
        if module in but:
            print(f"left out: {header} (of {module})")
            continue
        if flags is None:
            print(f"left out: {header} ({module} is absent or disabled)")
            continue
        yield header, [*flags, *([DECLARES] if re.search(r"/detail/compiled\w*\.hpp$", header) else [])]


def included(root, header, known):
    """The headers that a header includes before anything else, and those that they include."""
    if header not in known:
        known[header] = set()
        with open(os.path.join(root, "include", "distx", header), encoding="utf-8") as file:
            beginning_of = INCLUDES.match(file.read()).group()
        for other in re.findall(r"#include [<\"]distx/([^>\"]+)", beginning_of):
            known[header] |= {other} | included(root, other, known)
    return known[header]


def chains(includes):
    """The headers in as few lists as there can be, in each of which a header includes all before it: a matching of
    headers with headers that include them (Fulkerson, 1956)."""
    after, before = {}, {}

    def extend(header, tried):
        for larger in includes:
            if header in includes[larger] and larger not in tried:
                tried.add(larger)
                if larger not in before or extend(before[larger], tried):
                    before[larger], after[header] = header, larger
                    return True
        return False

    for header in includes:
        extend(header, set())
    found = []
    for header in includes:
        if header not in before:
            found.append([header])
            while found[-1][-1] in after:
                found[-1].append(after[found[-1][-1]])
    return found


def compiled_alone(root, build):
    """Returns what is compiled: headers in this order, and flags. In the compiled form, which takes less time: the definitions, which
    it leaves out, are headers of their own."""
    flags, known = dict(usable(root, build)), {}
    found = chains({header: included(root, header, known) for header in flags})
    return [(headers, [*flags[headers[-1]], DECLARES]) for headers in found]


def alone(compiler, root, build, part=slice(None)):
    failed = 0
    for headers, flags in compiled_alone(root, build)[part]:
        text = "".join(f"#include <distx/{name}>\n" for name in 2 * headers)
        done = compile_text(compiler, text, ["-I", os.path.join(root, "include"), *flags, "-fsyntax-only"])
        if done.returncode:
            failed += 1
            print(f"{' or '.join(headers)} does not compile alone:\n{beginning(done.stderr)}")
    return failed


def twice(compiler, root, build):
    text, flags = "", []
    for header, more in usable(root, build, SLOW):
        if DECLARES in more:
            continue  # the others are to define what they have
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
    compilers.warning_errors = lambda _: ["-Werror"]
    cases = {
        "good": ("#pragma once\n#include <vector>\ninline std::vector<int> f() { return {}; }\n", 0, 0),
        "needs another": ("#pragma once\nstd::vector<int> f();\n", 1, 1),
        "no guard": ("struct S {};\n", 1, 0),
        "warning": ("#pragma once\ninline int f(long i) { return i; }\n", 1, 1),
        "not inline": ("#pragma once\nint f() { return 1; }\n", 0, 1),
    }
    # A header whose guard or includes are wrong is found also where only another, that begins with it, is compiled.
    before = "// This includes another.\n#pragma once\n#include \"distx/core/case.hpp\"\n#include <vector>\n"
    failed = 0
    for name, (text, expect_alone, expect_twice) in cases.items():
        for others in ({}, {"another.hpp": before}):
            with tempfile.TemporaryDirectory() as root:
                os.makedirs(os.path.join(root, "include/distx/core"))
                for path, words in {"case.hpp": text, **others}.items():
                    with open(os.path.join(root, "include/distx/core", path), "w", encoding="utf-8") as file:
                        file.write(words)
                got = (alone(compiler, root, None), twice(compiler, root, None))
                # Where nothing guards it, a file that includes all headers has it twice already.
                expected = (expect_alone, int(expect_twice or (bool(others) and name == "no guard")))
                if got != expected:
                    failed += 1
                    print(f"self-test '{name}' with {list(others)} failed: expected {expected}, got {got}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["alone", "twice", "self-test"])
    parser.add_argument("--compiler", required=True, choices=["g++", "clang++", "any"])
    parser.add_argument("--build")
    parser.add_argument("--part", default="1/1", help="K/N: of what is compiled alone, every Nth from the Kth on")
    options = parser.parse_args()
    compiler = compilers.find_or_skip(options.compiler)
    first, step = (int(number) for number in options.part.split("/"))
    if options.what == "self-test":
        failed = self_test(compiler)
    elif options.what == "twice":
        failed = twice(compiler, compilers.ROOT, options.build)
    else:
        failed = alone(compiler, compilers.ROOT, options.build, slice(first - 1, None, step))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
