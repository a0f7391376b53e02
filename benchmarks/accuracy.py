#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The errors of operations on floats, distx's beside PyTorch's, against PyTorch's on the same numbers in float64. Builds
accuracy.cpp. Prints the table of docs/numerics.md; the status is 1 if an error of distx is above 1.2 times PyTorch's.

    benchmarks/accuracy.py [--headers FOLDER] [--cxx g++]

Needs PyTorch (`pip install torch`) and Eigen.
"""
import argparse
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1.2


def inputs(torch):
    """Of each name: a function from rows and columns to floats."""
    def normal(rows, columns):
        return torch.randn(rows, columns, dtype=torch.float64)

    def large_then_ones(rows, columns):
        x = torch.ones(rows, columns, dtype=torch.float64)
        x[:, 0] = 1e8
        return x

    def cancelling(rows, columns):
        x = normal(rows, columns)
        x[rows // 2:] = -x[:rows // 2].flip(0) + 1e-4 * x[rows // 2:]
        return x

    return {
        "normal": normal,
        "normal × 10": lambda rows, columns: 10 * normal(rows, columns),
        "0 to 1e-3": lambda rows, columns: 1e-3 * torch.rand(rows, columns, dtype=torch.float64),
        "mean 1,000": lambda rows, columns: 1e3 + normal(rows, columns),
        "mean 10,000": lambda rows, columns: 1e4 + normal(rows, columns),
        "all rows equal": lambda rows, columns: normal(1, columns).repeat(rows, 1),
        "cancelling": cancelling,
        "1e8, then ones": large_then_ones,
        "-3 to 3": lambda rows, columns: 6 * torch.rand(rows, columns, dtype=torch.float64) - 3,
        "-12 to -3": lambda rows, columns: 9 * torch.rand(rows, columns, dtype=torch.float64) - 12,
    }


# Operation, rows, columns, inputs.
CASES = [
    ("layer_norm", 64, 1024, ["normal", "mean 1,000"]),
    ("layer_norm", 4, 65536, ["normal", "mean 10,000"]),
    ("layer_norm_backward", 4, 65536, ["normal", "mean 10,000"]),
    ("softmax", 64, 64, ["normal"]),
    ("softmax", 4, 65536, ["normal", "0 to 1e-3"]),
    ("softmax_backward", 4, 65536, ["normal", "0 to 1e-3"]),
    ("cross_entropy", 4, 65536, ["normal", "0 to 1e-3"]),
    ("cross_entropy_backward", 64, 64, ["normal × 10", "mean 1,000", "mean 10,000"]),
    ("cross_entropy_backward", 4, 65536, ["normal × 10"]),
    ("sum_rows", 1 << 20, 8, ["normal", "cancelling"]),
    ("sum_over", 4, 10_000_000, ["normal", "1e8, then ones"]),
    ("mean_over", 4, 10_000_000, ["normal", "1e8, then ones"]),
    ("sum_over", 1, 100_000_000, ["normal", "1e8, then ones"]),
    ("attention", 1024, 192, ["normal"]),
    ("attention_backward", 1024, 192, ["normal"]),
    ("gelu", 1, 100_000, ["-3 to 3", "-12 to -3"]),
    ("gelu_backward", 1, 100_000, ["-3 to 3", "-12 to -3"]),
    ("tanh of the examples", 1, 100_000, ["normal"]),
    ("loss of the examples", 512, 64, ["normal", "all rows equal"]),
]


def of_torch(torch, operation, x, more, dtype):
    """PyTorch's result with elements of a type."""
    f = torch.nn.functional
    x = x.to(dtype).requires_grad_()
    w, b, g = (more[name].to(dtype) for name in "wbg")
    targets = more["targets"]
    if operation.startswith("layer_norm"):
        y = f.layer_norm(x, x.shape[-1:], w, b)
    elif operation.startswith("softmax"):
        y = f.softmax(x, -1)
    elif operation.startswith("cross_entropy"):
        y, g = f.cross_entropy(x, targets, reduction="none"), g.flatten()[:x.shape[0]]
    elif operation.startswith("attention"):
        size = x.shape[1] // 3
        q, k, v = (x[:, i * size:(i + 1) * size] for i in range(3))
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        y = f.softmax((q @ k.T / math.sqrt(size)).masked_fill(hidden, -math.inf), -1) @ v
        g = g.flatten()[:y.numel()].reshape(y.shape)
    elif operation.startswith("gelu"):
        y = f.gelu(x, approximate="tanh")
    else:
        return {
            "sum_rows": lambda: x.sum(0),
            "sum_over": lambda: x.sum(1),
            "mean_over": lambda: x.mean(1),
            "tanh of the examples": x.tanh,
            "loss of the examples": lambda: f.cross_entropy(x, targets),
        }[operation]().detach()
    if not operation.endswith("_backward"):
        return y.detach()
    y.backward(g)
    return x.grad


def of_distx(torch, program, folder, operation, x, more):
    for name, values in {"x": x, **more}.items():
        values.numpy().tofile(folder / name)
    subprocess.run([program, operation, str(x.shape[0]), str(x.shape[1]), folder], check=True)
    return torch.frombuffer(bytearray((folder / "result").read_bytes()), dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--headers", default=ROOT / "include", help="distx's headers")
    parser.add_argument("--cxx", default="g++")
    arguments = parser.parse_args()
    import torch  # pylint: disable=import-outside-toplevel
    torch.manual_seed(1)
    above = 0
    print("| operation | rows × columns | numbers | distx | PyTorch |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = folder / "accuracy"
        subprocess.run([arguments.cxx, "-std=c++20", "-O2", "-pthread", f"-I{arguments.headers}", "-isystem",
                        "/usr/include/eigen3", ROOT / "benchmarks/accuracy.cpp", "-o", program], check=True)
        for operation, rows, columns, names in CASES:
            for numbers in names:
                x = inputs(torch)[numbers](rows, columns).float()
                more = {"w": torch.randn(columns), "b": torch.randn(columns), "g": torch.randn(rows, columns),
                        "targets": torch.randint(columns, (1 if numbers == "all rows equal" else rows,))}
                if numbers == "all rows equal":
                    more["targets"] = more["targets"].repeat(rows)
                exact = of_torch(torch, operation, x, more, torch.float64).flatten()

                def error(result):
                    return ((result.flatten().double() - exact).norm() / exact.norm()).item()

                ours = error(of_distx(torch, program, folder, operation, x, more))
                theirs = error(of_torch(torch, operation, x, more, torch.float32))
                above += ours > LIMIT * theirs and not operation.startswith("tanh")
                print(f"| {operation} | {rows:,} × {columns:,} | {numbers} | {ours:.1e} | {theirs:.1e} |", flush=True)
    return above > 0


if __name__ == "__main__":
    sys.exit(main())
