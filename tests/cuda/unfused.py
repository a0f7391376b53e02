#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that each operation of an update, and of a mix, rounds by itself whatever nvcc's flags: that with
-use_fast_math nvcc fuses no product with a sum and approximates no quotient and no root. Which of an unrolled loop's
copies handles an element depends on how its array is partitioned; its bits must not.

    tests/cuda/unfused.py NVCC [FLAG…] FILE.cu   the PTX of the kernels of tests/cuda/kernels.cu
    tests/cuda/unfused.py --self-test            made-up kernels
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import selftest  # noqa: E402

# Updates with coefficients in the GPU's memory (ILb1E) read them: powers, which CUDA fuses itself, are not computed there.
BODY = re.compile(r"\d(update_kernelILb[01]E|MixBodyI)")
FEWEST = {"update_kernelILb0E": 24, "update_kernelILb1E": 24, "MixBodyI": 4}
ENTRY = re.compile(r"^[^\n]*\.entry\s+(\w+)", re.MULTILINE)
FUNCTION = re.compile(r"^(?=[^\n]*\.(?:entry|func)\b)", re.MULTILINE)
INEXACT = re.compile(r"^\s*(?:@!?%\w+\s+)?(fma\.[\w.]+|(?:div|sqrt|rcp|rsqrt)\.(?:approx|full)[\w.]*)", re.MULTILINE)


def check(ptx):
    """Returns messages about what is wrong."""
    wrong, found = [], dict.fromkeys(FEWEST, 0)
    for text in FUNCTION.split(ptx):
        name = ENTRY.match(text)
        body = BODY.search(name[1]) if name else None
        if not body:
            continue
        found[body[1]] += 1
        inexact = INEXACT.findall(text)
        if inexact:
            wrong.append(f"{name[1]} has {len(inexact)} fused or approximate operations: {inexact[0]}")
    for body, count in found.items():
        if count < FEWEST[body]:
            wrong.append(f"found {count} kernels of {body}, expected at least {FEWEST[body]}")
    return wrong


def self_test():
    def kernel(number, body, line):
        return f".visible .entry _Z{number}{body}IdE(\n)\n{{\n\t{line}\n}}\n"

    good = "".join(kernel(k, "13update_kernelILb0E", "add.rn.f32 %f1, %f2, %f3;") for k in range(30))
    good += "".join(kernel(k, "7MixBody", "@%p1 mul.rn.f64 %fd1, %fd2, %fd3;") for k in range(20))
    good += "".join(kernel(k, "13update_kernelILb1E", "mul.rn.f32 %f1, %f2, %f3;") for k in range(30))
    good += kernel(0, "18change_step_kernelI", "fma.rn.f64 %fd1, %fd2, %fd3, %fd4;")
    good += ".func helper(\n)\n{\n\tfma.rn.f32 %f1, %f2, %f3, %f4;\n}\n"
    update = "_Z913update_kernelILb0EIdE has 1 fused"
    broken = {
        "an update": (good + kernel(9, "13update_kernelILb0E", "fma.rn.f32 %f1, %f2, %f3, %f4;"), update),
        "a captured update": (
            good + kernel(9, "13update_kernelILb1E", "fma.rn.f32 %f1, %f2, %f3, %f4;"),
            "_Z913update_kernelILb1EIdE has 1 fused",
        ),
        "a quotient": (good + kernel(9, "13update_kernelILb0E", "div.approx.ftz.f32 %f1, %f2, %f3;"), update),
        "a condition": (good + kernel(9, "7MixBody", "@!%p1 fma.rn.f64 %fd1, %fd2;"), "_Z97MixBodyIdE has 1 fused"),
        "too few": (good.replace("7MixBody", "7NixBody"), "found 0 kernels of MixBody"),
        "nothing": ("", "found 0 kernels of update_kernel"),
    }
    return selftest.of(check, good, broken)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        done = subprocess.run([*sys.argv[1:], "-O2", "-use_fast_math", "--ptx", "-o", ptx], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{sys.argv[1]} exited with {done.returncode}: {done.stderr.strip()}")
            return 1
        with open(ptx, encoding="utf-8") as file:
            wrong = check(file.read())
    for message in wrong:
        print(message)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
