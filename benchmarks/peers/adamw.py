#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times one step of PyTorch's AdamW in its three forms, float32 on one thread: the peer of benchmarks/optimizer.cpp.

    benchmarks/peers/adamw.py [--elements 1048576 16777216] [--rounds 21] [--json]
    benchmarks/peers/adamw.py --cuda      the same on a GPU, beside a copy: the peer of benchmarks/kernels_cuda.cpp

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


def measure_cuda(torch, elements, rounds):
    """As kernels_cuda does it: in turns, by the GPU's clock, each beside a copy that moves as many bytes."""
    source = torch.zeros(14 * elements, dtype=torch.uint8, device="cuda")  # a copy moves each byte twice
    target = torch.empty_like(source)
    subjects = [("copy", lambda: target.copy_(source), [])]
    for name, form in FORMS.items():
        weight = torch.nn.Parameter(torch.zeros(elements, device="cuda"))
        weight.grad = torch.full_like(weight, 0.25)
        subjects.append((name, torch.optim.AdamW([weight], lr=1e-3, **form).step, []))
    passes = min(64, max(3, (1 << 26) // elements))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(rounds + 1):
        for i in range(len(subjects)):
            _, one_pass, seconds = subjects[(i + turn) % len(subjects)]
            begin.record()
            for _ in range(passes):
                one_pass()
            end.record()
            end.synchronize()
            if turn > 0:  # the first turn allocates the states
                seconds.append(1e-3 * begin.elapsed_time(end) / passes)
    copies = subjects[0][2]
    return [{"name": name, "elements": elements, "seconds": statistics.median(seconds), "bytes_per_element": 28,
             "over_copy": statistics.median(copy / own for copy, own in zip(copies, seconds))}
            for name, _, seconds in subjects]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, nargs="+", help="parameters; several sizes may follow")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--cuda", action="store_true", help="on a GPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        parser.exit(1, "PyTorch is absent: pip install torch\n")
    if options.cuda and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU here")
        parser.exit(77)
    torch.set_num_threads(1)
    sizes = options.elements or [1 << 20, 1 << 24] + ([1 << 28] if options.cuda else [])
    one_size = measure_cuda if options.cuda else measure
    rows = [row for elements in sizes for row in one_size(torch, elements, options.rounds)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    over = "  over copy" if options.cuda else ""
    print(f"{'parameters':>10}  {'PyTorch ' + torch.__version__:26} {'ms':>9} {'GB/s':>8}{over}")
    for row in rows:
        moved = row["bytes_per_element"] * row["elements"] / row["seconds"]
        print(f"{row['elements']:>10}  {row['name']:26} {1e3 * row['seconds']:>9.3f} {1e-9 * moved:>8.1f}"
              + (f"  {row['over_copy']:>9.3f}" if options.cuda else ""))


if __name__ == "__main__":
    main()
