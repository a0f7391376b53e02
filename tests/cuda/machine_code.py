#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks nvcc's machine code for sm_90: no kernel spills registers, and the kernels that move most of the bytes load and
store 16 bytes at once. Needs cuobjdump and nvdisasm, from the folder of nvcc or from PATH.

    tests/cuda/machine_code.py NVCC [FLAG…] FILE.cu   the kernels of tests/cuda/kernels.cu
    tests/cuda/machine_code.py --self-test            made-up machine code
"""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import selftest  # noqa: E402

# A kernel's mangled name: the fewest loads and stores of 16 bytes, and the most instructions in all. Each thread has one
# vector of each array. An update's kernel has two copies: of arrays whose vectors begin alike, and of others, which are
# loaded by two vectors each and stored by whole vectors.
BF16, F16 = "NS0_8bfloat16E", "NS0_7float16E"
CAPTURED = "13update_kernelILb1ENS0_5AdamWE"
UPDATE, CAST = "13update_kernelILb0ENS0_5AdamWE", "ENS2_8CastBodyI"
ROWS = "11rows_kernelINS2_"
ALIKE, ANYWHERE = "elementwise_kernelILb1ELi", "elementwise_kernelILb0ELi"
KERNELS = {
    "AdamW, float": (UPDATE + "ff", 12, 9, 1400),
    "AdamW, bfloat16 with masters": (UPDATE + "f" + BF16, 9, 9, 1600),
    "AdamW, float16 with masters": (UPDATE + "f" + F16, 9, 9, 1550),
    "AdamW, bfloat16 with masters, gradients of float": (UPDATE + "f" + BF16 + "f", 12, 9, 1550),
    "AdamW, float16 with masters, gradients of float": (UPDATE + "f" + F16 + "f", 12, 9, 1500),
    "AdamW, bfloat16": (UPDATE + BF16 + "S5_", 6, 6, 1550),
    "AdamW, float16": (UPDATE + F16 + "S5_", 6, 6, 1450),
    "AdamW in a captured step, float": (CAPTURED + "ff", 12, 9, 1400),
    "AdamW in a captured step, bfloat16 with masters": (CAPTURED + "f" + BF16, 9, 9, 1600),
    "cast from bfloat16 to float": (ALIKE + "4" + CAST + "f" + BF16, 0, 1, 130),
    "cast from float to bfloat16": (ALIKE + "4" + CAST + BF16 + "f", 1, 0, 150),
    "cast from float16 to float": (ALIKE + "4" + CAST + "f" + F16, 0, 1, 130),
    "cast from float to float16": (ALIKE + "4" + CAST + F16 + "f", 1, 0, 140),
    "cast from float to float8": (ALIKE + "4" + CAST + "NS0_11float8_e4m3Ef", 1, 0, 150),
    "cast from float to bfloat16, cut anywhere": (ANYWHERE + "4" + CAST + BF16 + "f", 2, 0, 260),
    "fill of 2 bytes": (ALIKE + "8ENS2_8FillBodyIt", 0, 1, 150),
    "fill of 4 bytes": (ALIKE + "4ENS2_8FillBodyIj", 0, 1, 100),
    "scale, float": (ALIKE + "4ENS2_9ScaleBodyIf", 1, 1, 120),
    "add, float": (ALIKE + "4ENS2_7AddBodyIf", 2, 1, 140),
    "add, float, cut anywhere": (ANYWHERE + "4ENS2_7AddBodyIf", 4, 2, 300),
    "map relu, float": (ALIKE + r"4ENS2_12FunctionBodyINS0_6detail8elements4ReluE", 1, 1, 130),
    "map plus, float": (ALIKE + r"4ENS2_12FunctionBodyINS0_6detail8elements4PlusE", 2, 1, 140),
    "softmax, float": (ROWS + "10SoftmaxRowIfE", 0, 0, 720),
    "layer norm, float": (ROWS + "12NormalizeRowIfE", 0, 0, 640),
    "layer norm backward, float": (ROWS + "20NormalizeRowBackwardIfE", 0, 0, 1300),
    "cross entropy backward, float": (ROWS + "19LogitGradientsOfRowIfE", 0, 0, 400),
    "embedding backward, float": (ROWS + "10AddToRowOfIfE", 0, 0, 580),
    "sums of rows, float": ("15sum_rows_kernelINS2_10NumberTermIfE", 0, 0, 500),
    "largest magnitude, float": ("14largest_kernelIf", 2, 0, 580),
    "largest magnitude, bfloat16": ("14largest_kernelI" + BF16, 2, 0, 660),
    "squares, float": ("14squares_kernelIf", 2, 0, 850),
    "squares, bfloat16": ("14squares_kernelI" + BF16, 2, 0, 960),
}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)")


def kernels_of(sass):
    """Returns each kernel's instructions, by its name."""
    return {part.split()[0]: INSTRUCTION.findall(part) for part in sass.split("Function : ")[1:]}


def check(sass):
    """Returns messages about what is wrong."""
    wrong = []
    kernels = kernels_of(sass)
    for name, instructions in kernels.items():
        spills = sum(i.startswith(("LDL", "STL")) for i in instructions)
        if spills:
            wrong.append(f"{name} spills registers: {spills} accesses to local memory")
    for what, (pattern, loads, stores, most) in KERNELS.items():
        found = [instructions for name, instructions in kernels.items() if pattern in name]
        if not found:
            wrong.append(f"{what}: no kernel's name contains {pattern}")
        for instructions in found:
            wide = [sum(i.startswith(kind) and ".128" in i for i in instructions) for kind in ("LDG", "STG")]
            if wide[0] < loads or wide[1] < stores:
                wrong.append(f"{what}: {wide[0]} loads and {wide[1]} stores of 16 bytes, expected {loads} and {stores}")
            if len(instructions) > most:
                wrong.append(f"{what}: {len(instructions)} instructions, expected at most {most}")
    return wrong


def self_test():
    def kernel(pattern, loads, stores):
        lines = ["LDG.E.128 R4, desc[UR4][R2.64]"] * loads + ["@!P0 STG.E.128.STRONG.SM desc[UR4][R2.64], R4"] * stores
        return f"Function : _Z{pattern}v\n" + "".join(f"        /*{16 * i:04x}*/   {line} ;\n" for i, line in enumerate(lines))

    good = "".join(kernel(pattern, loads, stores) for pattern, loads, stores, _ in KERNELS.values())
    broken = {
        "narrow": (good.replace("STG.E.128", "STG.E"), "0 stores of 16 bytes"),
        "spilled": (good + "Function : _Z1k\n        /*0000*/   @P1 STL.64 [R1], R4 ;\n", "_Z1k spills registers"),
        "long": (good + kernel("14largest_kernelIf", 2, 1000), "1002 instructions"),
        "nothing": ("", "no kernel's name contains"),
    }
    return selftest.of(check, good, broken)


def tool(name, nvcc):
    """Returns the path of one of CUDA's tools, or None: next to nvcc, in PATH, or Triton's, which PyTorch brings along."""
    triton = importlib.util.find_spec("triton")
    folders = [os.path.dirname(os.path.realpath(shutil.which(nvcc) or nvcc)), *os.environ["PATH"].split(os.pathsep)]
    folders += [os.path.join(folder, "backends/nvidia/bin") for folder in (triton.submodule_search_locations if triton else ())]
    return shutil.which(name, path=os.pathsep.join(folders))


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    nvcc = next(argument for argument in sys.argv[1:] if os.path.basename(argument).startswith("nvcc"))
    cuobjdump, nvdisasm = tool("cuobjdump", nvcc), tool("nvdisasm", nvcc)
    if cuobjdump is None or nvdisasm is None:
        print("skipped: there is no cuobjdump or no nvdisasm next to nvcc, in PATH or in Triton's package")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "kernels.cubin")
        environment = os.environ | {"PATH": os.path.dirname(nvdisasm) + os.pathsep + os.environ["PATH"]}
        for command in ([*sys.argv[1:], "-O2", "-arch=sm_90", "-cubin", "-o", cubin], [cuobjdump, "-sass", cubin]):
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if done.returncode != 0:
                print(f"{command[0]} exited with {done.returncode}: {done.stderr.strip()}")
                return 1
    wrong = check(done.stdout)
    for message in wrong:
        print(message)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
