#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times one step of PyTorch's AdamW in its three forms, float32 on one thread: the peer of benchmarks/optimizer.cpp.

    benchmarks/peers/adamw.py [--elements 1048576 16777216] [--rounds 21] [--json]

Needs PyTorch (`pip install torch`). The rows have the names that those of `optimizer --json` have.
"""
import argparse
import json
import statistics
import time

FORMS = {
    "PyTorch AdamW, fused": {"fused": True},
    "PyTorch AdamW, foreach": {"foreach": True},
    "PyTorch AdamW, for loop": {"foreach": False, "fused": False},
}


def measure(torch, elements, rounds):
    subjects = []
    for name, form in FORMS.items():
        weight = torch.nn.Parameter(torch.zeros(elements))
        weight.grad = 1e-3 * (torch.arange(elements) % 1000).float() - 0.5
        subjects.append((name, torch.optim.AdamW([weight], lr=1e-3, **form), []))
    passes = max(1, (1 << 24) // elements)
    for turn in range(rounds + 1):
        for _, optimizer, seconds in subjects:
            begin = time.perf_counter()
            for _ in range(passes):
                optimizer.step()
            if turn > 0:  # the first turn allocates the states
                seconds.append((time.perf_counter() - begin) / passes)
    return [{"name": name, "elements": elements, "seconds": statistics.median(seconds), "bytes_per_element": 28}
            for name, _, seconds in subjects]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 20, 1 << 24])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        parser.exit(1, "PyTorch is absent: pip install torch\n")
    torch.set_num_threads(1)
    rows = [row for elements in options.elements for row in measure(torch, elements, options.rounds)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'parameters':>10}  {'PyTorch ' + torch.__version__:26} {'ms':>9} {'GB/s':>8}")
    for row in rows:
        moved = row["bytes_per_element"] * row["elements"] / row["seconds"]
        print(f"{row['elements']:>10}  {row['name']:26} {1e3 * row['seconds']:>9.3f} {1e-9 * moved:>8.1f}")


if __name__ == "__main__":
    main()
