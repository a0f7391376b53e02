#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that files do not compile, and that their user is told why in our words and in no others.

    tests/compile_fail/check.py --compiler g++|clang++ FILE…
    tests/compile_fail/check.py --compiler g++|clang++ --self-test

A file begins with comments:

    // expect: a sentence, or a part of one; several such lines may be given
    // flags: -Werror=unused-result        (optional)

At the compiler's default settings there must be exactly one error; each sentence must be in the output, the first one
in the error's own line. With DISTX_POSITIVE defined the same file must compile, so that it cannot fail by accident; that does not
depend on the compiler, and is checked with g++ only, for all files of the same flags at once, each in a namespace of its own.

What the files include is compiled once, ahead of them all: whether each header can stand alone is tests/headers' matter. They are
compiled in the compiled form, which a build's targets have: what a user's types make wrong is the same text in both forms, and takes a
fifth of the time in this one.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import compilers  # noqa: E402


def directives(path):
    found = {"expect": [], "flags": []}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("//"):
                break
            key, _, value = line[2:].strip().partition(":")
            if key in found:
                found[key].append(value.strip())
    found["flags"] = " ".join(found["flags"]).split()
    return found


def run_compiler(compiler, *arguments):
    command = [compiler, "-std=c++20", "-DDISTX_COMPILED=extern", "-I", os.path.join(compilers.ROOT, "include"), *arguments]
    return subprocess.run(command, env=dict(os.environ, LC_ALL="C"), capture_output=True, text=True, check=False)


def compile_ahead(compiler, files, folder):
    """The flags by which distx's headers are there already."""
    included = set()
    for path in files:
        with open(path, encoding="utf-8") as file:
            included.update(re.findall(r'^#include "distx/.*$', file.read(), re.MULTILINE))
    header = os.path.join(folder, "ahead.hpp")
    with open(header, "w", encoding="utf-8") as file:
        file.write("#pragma once\n" + "\n".join(sorted(included)) + "\n")
    compiled = header + (".pch" if "clang" in compiler else ".gch")
    done = run_compiler(compiler, "-x", "c++-header", header, "-o", compiled)
    if done.returncode:
        raise SystemExit(f"the headers do not compile:\n{done.stderr}")
    return ["-include-pch", compiled] if "clang" in compiler else ["-I", folder, "-include", "ahead.hpp"]


def positive_complaints(compiler, paths, flags, folder):
    """What is wrong with the files where DISTX_POSITIVE is defined, as a list of sentences."""
    includes, parts, source = [], [], paths[0]
    for number, path in enumerate(paths):
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        includes += [line for line in lines if line.startswith("#include ")]
        kept = ("" if line.startswith("#include ") else line for line in lines)
        parts += [f"namespace file_{number} {{", f'#line 1 "{path}"', *kept, "}"]
    if len(paths) > 1:
        source = os.path.join(folder, "union.cpp")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join([*dict.fromkeys(includes), *parts]) + "\n")
    # With this sanitizer g++ takes fewer expressions for constants; it compiles the headers again.
    done = run_compiler(compiler, *flags, "-fsanitize=undefined", "-DDISTX_POSITIVE", "-fsyntax-only", source)
    return ["with DISTX_POSITIVE all must compile, and do not:\n" + done.stderr] if done.returncode else []


def complaints(compiler, path, flags, expected):
    """What is wrong with the file, as a list of sentences."""
    if not expected:
        return ["there is no '// expect:' line at the top"]
    wrong = []
    negative = run_compiler(compiler, *flags, "-fsyntax-only", path)
    if negative.returncode == 0:
        return ["it compiles, and must not"]
    said = compilers.without_versions(negative.stderr)
    errors = [line for line in said.splitlines() if " error: " in line]
    if len(errors) != 1:
        wrong.append(f"there are {len(errors)} errors, and must be 1")
    if not any(expected[0] in line for line in errors):
        wrong.append(f"no error says: {expected[0]}")
    wrong += [f"nothing says: {sentence}" for sentence in expected[1:] if sentence not in said]
    if wrong:
        wrong.append("the compiler said:\n" + negative.stderr)
    return wrong


def self_test(compiler):
    """Shows on made-up files that each complaint can be made, and that a good file gives none."""
    assertion = "static_assert(sizeof(int) == 1, \"an int is no byte\");\n"
    guarded = "#ifndef DISTX_POSITIVE\n" + assertion + "#endif\n"
    cases = {
        "good": (guarded, ["an int is no byte"], None),
        "compiles": ("int i;\n", ["an int is no byte"], "it compiles"),
        "sentence": (guarded, ["an int is a byte"], "no error says"),
        "note": (guarded, ["an int is no byte", "and no long"], "nothing says"),
        "two errors": (guarded + guarded, ["an int is no byte"], "there are 2 errors"),
        "accident": (assertion, ["an int is no byte"], "all must compile, and do not"),
        "silent": (guarded, [], "no '// expect:'"),
    }
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, expected, complaint) in cases.items():
            path = os.path.join(folder, "case.cpp")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            said = complaints(compiler, path, [], expected)
            said += positive_complaints(compiler, [path], [], folder) + positive_complaints(compiler, [path, path], [], folder)
            good = not said if complaint is None else any(complaint in sentence for sentence in said)
            if not good:
                failed += 1
                print(f"self-test '{name}' failed: expected {complaint!r}, got {said}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", required=True, choices=["g++", "clang++"])
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    compiler = compilers.find_or_skip(options.compiler)
    if options.self_test:
        return self_test(compiler)
    failed, by_flags = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        ahead = compile_ahead(compiler, options.files, folder)
        for path in options.files:
            found = directives(path)
            # What was compiled ahead does not serve other flags than those of warnings.
            use = ahead if all(flag.startswith("-W") for flag in found["flags"]) else []
            wrong = complaints(compiler, path, use + found["flags"], found["expect"])
            failed += 1 if wrong else 0
            for sentence in wrong:
                print(f"{path}: {sentence}")
            by_flags.setdefault((*use, *found["flags"]), []).append(path)
        for flags, paths in by_flags.items() if options.compiler == "g++" else ():
            for sentence in positive_complaints(compiler, paths, flags, folder):
                failed += 1
                print(sentence)
    print(f"{len(options.files)} files, {failed} wrong")
    return 1 if failed or not options.files else 0


if __name__ == "__main__":
    sys.exit(main())
