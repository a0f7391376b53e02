#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times training steps of LibTorch modules by distx in turn with PyTorch's DistributedDataParallel, on Gloo and on distx.

    benchmarks/torch_step.py BUILD [--alternations 5] [--rounds 5] [--steps 20]

Needs PyTorch, BUILD/benchmarks/torch_step (-Dlibtorch=…) and the extension of python/ in BUILD/tests/torch/c10d, where its
test builds it. Two ranks of one thread each. In each alternation the C++ program runs, then Python; inside each, all ways
take turns of so many steps. Prints the median of each alternation in milliseconds, and the ratio of their median to that of the
same language's model alone.
"""
import argparse
import collections
import os
import statistics
import sys
import time

from peers.ranks import run_program, run_script


def train(rank, ranks, store, rounds, steps):
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
    import distx_torch  # noqa: F401 (registers the backend)

    class Block(nn.Module):
        def __init__(self, width=128):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            n, t, width = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(attended.transpose(1, 2).reshape(n, t, width))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, 128), nn.Embedding(64, 128)
            self.blocks, self.head = nn.ModuleList([Block() for _ in range(4)]), nn.Linear(128, 256)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(64))
            for block in self.blocks:
                x = block(x)
            return self.head(x).flatten(0, 1)

    def mlp():
        return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    models = {"mlp": (mlp, torch.rand(64, 784) * 2 - 1, torch.arange(64) * 7 % 10),
              "gpt": (Gpt, torch.randint(256, (4, 64)), torch.randint(256, (256,)))}
    groups = {"gloo": None, "gloo-views": None, "distx": dist.new_group(backend="cpu:distx")}
    ways = []
    for name, (make, x, y) in models.items():
        for way in ("alone", *groups):
            module = make()
            if way != "alone":
                views = way != "gloo"
                module = nn.parallel.DistributedDataParallel(module, process_group=groups[way], gradient_as_bucket_view=views)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
            ways.append((f"{name} python-{way}", module, optimizer, x, y))
    for turn in range(rounds + 1):
        for name, module, optimizer, x, y in ways:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                F.cross_entropy(module(x), y).backward()
                optimizer.step()
            dist.barrier()
            if turn > 0 and rank == 0:
                print(name, 1e3 * (time.perf_counter() - begin) / steps)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        sys.path.insert(0, os.path.join(options.build, "tests", "torch", "c10d"))
        return train(int(options.rank[0]), 2, options.rank[1], options.rounds, options.steps)
    medians = collections.defaultdict(list)
    counts = [str(options.rounds), str(options.steps)]
    for _ in range(options.alternations):
        times = collections.defaultdict(list)
        printed = run_program(options.build, "torch_step", 2, *counts)
        printed += run_script(__file__, 2, options.build, "--rounds", counts[0], "--steps", counts[1])
        for line in printed.splitlines():
            model, way, milliseconds = line.split()
            times[model, way].append(float(milliseconds))
        for key, values in times.items():
            medians[key].append(statistics.median(values))
    for (model, way), values in medians.items():
        base = statistics.median(medians[model, "python-alone" if way.startswith("python") else "alone"])
        print(f"{model} {way:20} {' '.join(f'{value:7.2f}' for value in values)} ms, "
              f"{statistics.median(values) / base:.2f} of alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
