#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that nvcc fuses no product with a sum where elements are updated or mixed: which of an unrolled loop's copies
an element goes through depends on where its array is cut, and bits must not.

    tests/cuda/unfused.py NVCC [FLAG…] FILE.cu   what nvcc makes of the kernels of tests/cuda/kernels.cu
    tests/cuda/unfused.py --self-test            made-up kernels
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import selftest  # noqa: E402

# Kernels whose coefficients are worked out on the GPU (StepUpdateBody) take powers, which CUDA fuses for itself.
BODY = re.compile(r"\d(UpdateBody|MixBody)I")
FEWEST = {"UpdateBody": 16, "MixBody": 4}
ENTRY = re.compile(r"^[^\n]*\.entry\s+(\w+)", re.MULTILINE)
FUNCTION = re.compile(r"^(?=[^\n]*\.(?:entry|func)\b)", re.MULTILINE)
FUSED = re.compile(r"^\s*(?:@!?%\w+\s+)?(fma\.[\w.]+)", re.MULTILINE)


def check(ptx):
    """Sentences that say what is wrong."""
    wrong, found = [], dict.fromkeys(FEWEST, 0)
    for text in FUNCTION.split(ptx):
        name = ENTRY.match(text)
        body = BODY.search(name[1]) if name else None
        if not body:
            continue
        found[body[1]] += 1
        fused = FUSED.findall(text)
        if fused:
            wrong.append(f"{name[1]} fuses {len(fused)} products with sums: {fused[0]}")
    for body, count in found.items():
        if count < FEWEST[body]:
            wrong.append(f"there are {count} kernels of {body}, and ought to be {FEWEST[body]} at least")
    return wrong


def self_test():
    def kernel(number, body, line):
        return f".visible .entry _Z{number}{body}IdE(\n)\n{{\n\t{line}\n}}\n"

    good = "".join(kernel(k, "10UpdateBody", "add.rn.f32 %f1, %f2, %f3;") for k in range(20))
    good += "".join(kernel(k, "7MixBody", "@%p1 mul.rn.f64 %fd1, %fd2, %fd3;") for k in range(20))
    good += kernel(0, "14StepUpdateBody", "fma.rn.f64 %fd1, %fd2, %fd3, %fd4;")
    good += ".func helper(\n)\n{\n\tfma.rn.f32 %f1, %f2, %f3, %f4;\n}\n"
    broken = {
        "an update": (good + kernel(9, "10UpdateBody", "fma.rn.f32 %f1, %f2, %f3, %f4;"), "_Z910UpdateBodyIdE fuses 1"),
        "a condition": (good + kernel(9, "7MixBody", "@!%p1 fma.rn.f64 %fd1, %fd2;"), "_Z97MixBodyIdE fuses 1"),
        "too few": (good.replace("7MixBody", "7NixBody"), "there are 0 kernels of MixBody"),
        "nothing": ("", "there are 0 kernels of UpdateBody"),
    }
    return selftest.of(check, good, broken)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        done = subprocess.run([*sys.argv[1:], "-O2", "--ptx", "-o", ptx], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{sys.argv[1]} ended with {done.returncode}: {done.stderr.strip()}")
            return 1
        with open(ptx, encoding="utf-8") as file:
            wrong = check(file.read())
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
