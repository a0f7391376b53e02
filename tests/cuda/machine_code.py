#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks nvcc's machine code for sm_90: no kernel spills registers, every kernel that works element by element moves 16
bytes at once, and the kernels that move most of the bytes do so with each array. Needs cuobjdump and nvdisasm, from the folder of
nvcc or from PATH.

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

# A kernel's mangled name: the fewest loads and stores of 16 bytes, the most instructions in all, and the fewest loads and
# stores of 8 bytes, for arrays whose elements have half the size of the widest array's. Each thread has one vector of each
# array. An update's kernel has two copies: of arrays whose vectors begin alike, and of others, which are loaded by two
# vectors each and stored by whole vectors.
BF16, F16 = "NS0_8bfloat16E", "NS0_7float16E"
CAPTURED = "13update_kernelILb1ENS0_5AdamWE"
UPDATE, SGD, CAST = "13update_kernelILb0ENS0_5AdamWE", "13update_kernelILb0ENS0_3SGDE", "ENS2_8CastBodyI"
FIRST_PASS = "13update_kernelILb0ENS0_6detail9FirstPassINS0_4LAMBEEE"
SECOND_PASS = "13update_kernelILb0ENS0_6detail10SecondPassINS0_4LAMBEEE"
ROWS = "11rows_kernelINS2_"
ALIKE, ANYWHERE = "elementwise_kernelILb1ELi", "elementwise_kernelILb0ELi"
MAP = "4ENS2_12FunctionBodyINS0_6detail8elements"
KERNELS = {
    "AdamW, float": (UPDATE + "ff", 12, 9, 1400),
    "AdamW, bfloat16 with masters": (UPDATE + "f" + BF16 + "S5_", 9, 9, 1600, 3, 3),
    "AdamW, float16 with masters": (UPDATE + "f" + F16 + "S5_", 9, 9, 1550, 3, 3),
    "AdamW, bfloat16 with masters, gradients of float": (UPDATE + "f" + BF16 + "f", 12, 9, 1550, 0, 3),
    "AdamW, float16 with masters, gradients of float": (UPDATE + "f" + F16 + "f", 12, 9, 1500, 0, 3),
    "AdamW, bfloat16": (UPDATE + BF16 + "S5_", 6, 6, 1550, 6, 3),
    "AdamW, float16": (UPDATE + F16 + "S5_", 6, 6, 1450, 6, 3),
    "AdamW in a captured step, float": (CAPTURED + "ff", 12, 9, 1400),
    "AdamW in a captured step, bfloat16 with masters": (CAPTURED + "f" + BF16 + "S5_", 9, 9, 1600, 3, 3),
    "SGD, float": (SGD + "ff", 9, 6, 750),
    "SGD, bfloat16 with masters": (SGD + "f" + BF16 + "S5_", 6, 6, 950, 3, 3),
    "SGD, bfloat16 with masters, gradients of float": (SGD + "f" + BF16 + "f", 9, 6, 850, 0, 3),
    "SGD, bfloat16": (SGD + BF16 + "S5_", 3, 3, 1000, 6, 3),
    "LAMB, float, first pass": (FIRST_PASS + "ff", 12, 12, 1700),
    "LAMB, bfloat16 with masters, first pass": (FIRST_PASS + "f" + BF16 + "S8_", 9, 12, 1900, 3, 3),
    "LAMB, float, second pass": (SECOND_PASS + "ff", 6, 6, 700),
    "cast from bfloat16 to float": (ALIKE + "4" + CAST + "f" + BF16, 0, 1, 130, 1),
    "cast from bfloat16 to float, cut anywhere": (ANYWHERE + "4" + CAST + "f" + BF16, 0, 2, 230, 2),
    "cast from float to bfloat16": (ALIKE + "4" + CAST + BF16 + "f", 1, 0, 150, 0, 1),
    "cast from float16 to float": (ALIKE + "4" + CAST + "f" + F16, 0, 1, 130, 1),
    "cast from float to float16": (ALIKE + "4" + CAST + F16 + "f", 1, 0, 140, 0, 1),
    "cast from float to float8": (ALIKE + "4" + CAST + "NS0_11float8_e4m3Ef", 1, 0, 150),
    "cast from float to bfloat16, cut anywhere": (ANYWHERE + "4" + CAST + BF16 + "f", 2, 0, 260, 0, 2),
    "fill of 2 bytes": (ALIKE + "8ENS2_8FillBodyIt", 0, 1, 150),
    "fill of 4 bytes": (ALIKE + "4ENS2_8FillBodyIj", 0, 1, 100),
    "scale, float": (ALIKE + "4ENS2_9ScaleBodyIf", 1, 1, 120),
    "scale, bfloat16": (ALIKE + "8ENS2_9ScaleBodyI" + BF16, 1, 1, 300),
    "add, float": (ALIKE + "4ENS2_7AddBodyIf", 2, 1, 140),
    "add, float, cut anywhere": (ANYWHERE + "4ENS2_7AddBodyIf", 4, 2, 300),
    "add, bfloat16": (ALIKE + "8ENS2_7AddBodyI" + BF16, 2, 1, 350),
    "mix, float": (ALIKE + "4ENS2_7MixBodyIff", 2, 1, 160),
    "mix, float, cut anywhere": (ANYWHERE + "4ENS2_7MixBodyIff", 4, 2, 300),
    "mix of bfloat16 into float": (ALIKE + "4ENS2_7MixBodyIf" + BF16, 1, 1, 170, 1),
    "mix, bfloat16": (ALIKE + "8ENS2_7MixBodyI" + BF16 + "S5_", 2, 1, 400),
    "map relu, float": (ALIKE + MAP + "4ReluEf", 1, 1, 130),
    "map relu backward, float": (ALIKE + MAP + "12ReluBackwardEf", 2, 1, 140),
    "map gelu, float": (ALIKE + MAP + "4GeluIfE", 1, 1, 400),
    "map gelu, float, cut anywhere": (ANYWHERE + MAP + "4GeluIfE", 2, 2, 500),
    "map gelu backward, float": (ALIKE + MAP + "12GeluBackwardIfE", 2, 1, 400),
    "map plus, float": (ALIKE + MAP + "4PlusEf", 2, 1, 140),
    "map times a factor, float": (ALIKE + MAP + "11TimesFactorIfE", 1, 1, 130),
    "softmax, float": (ROWS + "10SoftmaxRowIfE", 0, 0, 720),
    "layer norm, float": (ROWS + "12NormalizeRowIfE", 0, 0, 640),
    "layer norm backward, float": (ROWS + "20NormalizeRowBackwardIfE", 0, 0, 1300),
    "cross entropy backward, float": (ROWS + "19LogitGradientsOfRowIfE", 0, 0, 400),
    "embedding backward, float": (ROWS + "11AddRunOfIdsIfE", 0, 0, 850),
    "embedding backward, ids": (ROWS + "11PlaceDigitsE", 0, 0, 950),
    "attention, float": ("16attention_kernelIfE", 0, 0, 2600),
    "attention backward, queries' numbers, float": ("24attention_queries_kernelIfE", 0, 0, 2900),
    "attention backward, queries, float": ("31attention_query_gradient_kernelIfE", 0, 0, 2400),
    "attention backward, keys and values, float": ("29attention_key_gradient_kernelIfE", 0, 0, 2950),
    "sums of rows, float": ("15sum_rows_kernelINS2_10NumberTermIfE", 0, 0, 500),
    "largest magnitude, float": ("14largest_kernelIf", 2, 0, 580),
    "largest magnitude, bfloat16": ("14largest_kernelI" + BF16, 2, 0, 660),
    "squares, float": ("14squares_kernelIf", 2, 0, 850),
    "squares, bfloat16": ("14squares_kernelI" + BF16, 2, 0, 960),
}
ELEMENTWISE = re.compile(r"\d(?:elementwise|update)_kernelI")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)")


def kernels_of(sass):
    """Returns each kernel's instructions, by its name."""
    return {part.split()[0]: INSTRUCTION.findall(part) for part in sass.split("Function : ")[1:]}


def check(sass):
    """Returns messages about what is wrong."""
    wrong = []
    kernels = kernels_of(sass)
    for name, instructions in kernels.items():
        if ELEMENTWISE.search(name) and not any(".128" in i for i in instructions):
            wrong.append(f"{name} has no loads and stores of 16 bytes")
        spills = sum(i.startswith(("LDL", "STL")) for i in instructions)
        if spills:
            wrong.append(f"{name} spills registers: {spills} accesses to local memory")
    for what, (pattern, loads, stores, most, *half) in KERNELS.items():
        found = [instructions for name, instructions in kernels.items() if pattern in name]
        if not found:
            wrong.append(f"{what}: no kernel's name contains {pattern}")
        for instructions in found:
            for size, bits, fewest in ((16, ".128", (loads, stores)), (8, ".64", (*half, 0, 0)[:2])):
                wide = [sum(i.startswith(kind) and bits in i for i in instructions) for kind in ("LDG", "STG")]
                if wide[0] < fewest[0] or wide[1] < fewest[1]:
                    found_wide = f"{wide[0]} loads and {wide[1]} stores of {size} bytes"
                    wrong.append(f"{what}: {found_wide}, expected {fewest[0]} and {fewest[1]}")
            if len(instructions) > most:
                wrong.append(f"{what}: {len(instructions)} instructions, expected at most {most}")
    return wrong


def self_test():
    def kernel(pattern, loads, stores, _=0, half_loads=0, half_stores=0):
        lines = ["LDG.E.128 R4, desc[UR4][R2.64]"] * loads + ["@!P0 STG.E.128.STRONG.SM desc[UR4][R2.64], R4"] * stores
        lines += ["LDG.E.64 R4, desc[UR4][R2.64]"] * half_loads + ["STG.E.64 desc[UR4][R2.64], R4"] * half_stores
        return f"Function : _Z{pattern}v\n" + "".join(f"        /*{16 * i:04x}*/   {line} ;\n" for i, line in enumerate(lines))

    good = "".join(kernel(*each) for each in KERNELS.values())
    broken = {
        "narrow": (good.replace("STG.E.128", "STG.E"), "0 stores of 16 bytes"),
        "narrow halves": (good.replace("LDG.E.64", "LDG.E"), "0 loads and 0 stores of 8 bytes, expected 1 and 0"),
        "a kernel that is not listed": (good + kernel("18elementwise_kernelINew", 0, 0, 0, 1), "has no loads and stores of 16"),
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
