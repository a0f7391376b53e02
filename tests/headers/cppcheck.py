#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs cppcheck over every header of include/distx, each by itself.

    tests/headers/cppcheck.py
    tests/headers/cppcheck.py --self-test
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import compilers  # noqa: E402

VERSION = "2.10"  # others find other things
OPTIONS = ["--language=c++", "--std=c++20", "--enable=warning,performance,portability", "--quiet", "--max-configs=4",
           "--template={file}:{line}: {message} [{id}]", "--template-location=",
           # Each header is read alone, and the #error of an absent package is meant.
           "--suppress=missingInclude", "--suppress=missingIncludeSystem", "--suppress=preprocessorErrorDirective",
           # A tag's `name` or `kind` replaces that of the tag it derives from.
           "--suppress=duplInheritedMember",
           # The functions that rethrow are called by exception handlers.
           "--suppress=rethrowNoCurrentException",
           # Spans and references to matrices are as cheap to copy as to refer to.
           "--suppress=passedByValue"]
# What cppcheck misunderstands: [header, finding, why it is none].
ALLOWED = [
    ("comm/any_communicator.hpp", "accessMoved", "the first move is within a requirement, which is not evaluated"),
    ("comm/hierarchical/levels.hpp", "mismatchingContainerExpression", "begin is a lambda that returns a number"),
    ("comm/owning_pending.hpp", "returnStdMoveLocal", "the buffer is in a tuple that other pointers may own"),
    ("comm/split_rule.hpp", "identicalConditionAfterEarlyExit", "the requirements of two `if constexpr` differ"),
    ("comm/lists.hpp", "operatorEqVarError", "the number of exceptions belongs to the object that is assigned to"),
    ("cuda/kernels/boxes.cuh", "shiftTooManyBits", "the shifted product has 64 bits"),
    ("cuda/kernels/tensors.cuh", "constStatement", "the braces convert an element"),
    ("memory/sums.hpp", "uninitMemberVar", "a lane has no value before one is stored, as in a vector"),
    ("observe/detail/flight_registry.hpp", "derefInvalidIterator", "place[-1] precedes the end"),
    ("parallel/detail/engine/gather/weight_gatherer.hpp", "cppcheckError", "an error of cppcheck's own"),
    ("parallel/detail/engine/state/replicas.hpp", "returnDanglingLifetime", "the function returns nothing; a lambda in it returns a value"),
    ("tensor/ops/matmul.hpp", "compareBoolExpressionWithInt", "the angles are those of template arguments"),
]
# Macros that a header takes from another one.
MACROS = ["DISTX_KERNELS_BEGIN", "DISTX_KERNELS_END"]
# Lambdas with template parameters, kernels' launches and some concepts are beyond this version's grammar.
UNREADABLE = {"syntaxError", "internalAstError"}


def find():
    path = shutil.which("cppcheck")
    if path and VERSION in subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout:
        return path
    print(f"skipped: there is no cppcheck {VERSION} on PATH")
    raise SystemExit(77)


def findings(program, files):
    """Returns what cppcheck finds, as [file, finding, line of output]."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names, tempfile.NamedTemporaryFile("w", suffix=".cfg") as macros:
        names.write("\n".join(files))
        names.flush()
        defines = "".join(f'<define name="{name}" value=""/>' for name in MACROS)
        macros.write(f'<?xml version="1.0"?><def format="2">{defines}</def>')
        macros.flush()
        done = subprocess.run([program, *OPTIONS, f"--library={macros.name}", f"--file-list={names.name}"], capture_output=True,
                              text=True, check=True)
    lines = sorted(set(filter(None, done.stderr.splitlines())))
    found = [re.fullmatch(r"(.*?):\d+: .* \[(\w+)\]", line) for line in lines]
    assert all(found), f"cppcheck says something else: {lines}"
    return [(match[1], match[2], match[0]) for match in found]


def all_headers(program):
    folder = os.path.join(compilers.ROOT, "include", "distx")
    headers = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith((".hpp", ".cuh"))]
    found = [(os.path.relpath(file, folder), what, line) for file, what, line in findings(program, sorted(headers))]
    unreadable = sorted({file for file, what, _ in found if what in UNREADABLE})
    print(f"cppcheck reads {len(headers) - len(unreadable)} headers, and cannot read {len(unreadable)}: {', '.join(unreadable)}")
    allowed = {(file, what) for file, what, _ in ALLOWED}
    wrong = [line for file, what, line in found if what not in UNREADABLE and (file, what) not in allowed]
    wrong += [f"{file} no longer has {what}: remove it from ALLOWED" for file, what in allowed - {(file, what) for file, what, _ in found}]
    print("\n".join(wrong) or "it finds nothing")
    return 1 if wrong or len(unreadable) * 20 > len(headers) else 0


def self_test(program):
    failed = 0
    for body, wanted in (("int f(int i) { return i; }\n", []), ("int f() { int a[2] = {}; return a[2]; }\n", ["arrayIndexOutOfBounds"])):
        with tempfile.NamedTemporaryFile("w", suffix=".hpp") as header:
            header.write(body)
            header.flush()
            found = [what for _, what, _ in findings(program, [header.name])]
        if found != wanted:
            failed += 1
            print(f"expected {wanted}, and found {found}")
    return failed


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--self-test", action="store_true")
    program = find()
    return self_test(program) if arguments.parse_args().self_test else all_headers(program)


if __name__ == "__main__":
    sys.exit(main())
