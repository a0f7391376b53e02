#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares examples/torch/train_mnist with PyTorch's DistributedDataParallel on Gloo.

    tests/torch/losses.py RUN EXAMPLE ALONE DIGITS

RUN is tools/run, EXAMPLE and ALONE are the programs of the example, DIGITS is what tools/digits has written. Both train from
the same weights on the same batches. Losses of 100 steps on 1, 2 and 4 ranks at stages 0 to 3 are the same bits at all
stages. In float64 they differ by at most 1e-12 of their size, in float32 the first ten by at most 2e-6: sooner or later
a rounding decides which of two pixels is the largest, or on which side of 0 a ReLU is, and from there the runs part,
PyTorch's own with ATEN_CPU_CAPABILITY=default too (by 0.2 after 100 steps). The two programs differ in at most ten lines of code.
"""
import csv
import difflib
import gzip
import multiprocessing
import os
import subprocess
import sys
import tempfile

import torch

STEPS, BATCH, RATE, MOMENTUM = 100, 64, 0.1, 0.5
LIMITS = {"float32": (10, 2e-6), "float64": (STEPS, 1e-12)}  # steps that are compared, and the distance
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def train(rank, ranks, digits, dtype, store):
    """One rank of DistributedDataParallel; returns its losses."""
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
            self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

        def forward(self, x):
            x = F.relu(F.max_pool2d(self.conv1(x), 2))
            x = F.relu(F.max_pool2d(torch.feature_dropout(self.conv2(x), 0.5, self.training), 2))
            x = F.dropout(F.relu(self.fc1(x.flatten(1))), 0.5, self.training)
            return F.log_softmax(self.fc2(x), 1)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    net = Net()
    with gzip.open(digits, "rt") as file:
        rows = [[float(number) for number in row] for row in csv.reader(file)]
    table = torch.tensor(rows)
    order = torch.randperm(len(rows))
    images = F.interpolate((table[:, :64] / 16).view(-1, 1, 8, 8), size=(28, 28), mode="bilinear")[order].to(dtype)
    labels = table[:, 64].long()[order]
    ddp = nn.parallel.DistributedDataParallel(net.to(dtype))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE, momentum=MOMENTUM)
    torch.manual_seed(100 + rank)
    part, losses = BATCH // ranks, []
    for step in range(STEPS):
        mine = (torch.arange(part) + step * BATCH + rank * part) % len(rows)
        optimizer.zero_grad()
        loss = F.nll_loss(ddp(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


def reference(ranks, digits, dtype):
    """Rank 0's losses of forked processes, which have PyTorch loaded."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("fork").Pool(ranks) as pool:
        calls = [(rank, ranks, digits, getattr(torch, dtype), os.path.join(folder, "store")) for rank in range(ranks)]
        return pool.starmap_async(train, calls, chunksize=1).get(timeout=300)[0]


def losses_of(command):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    losses = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step ")]
    if len(losses) != STEPS:
        raise SystemExit(f"{' '.join(command)} printed {len(losses)} losses\n{done.stdout}{done.stderr}")
    return losses


def distance(losses, others):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def code_of(name):
    with open(os.path.join(ROOT, "examples", "torch", name)) as file:
        return [line for line in file if line.strip() and not line.startswith("//")]


def main():
    run, example, alone, digits = sys.argv[1:]
    if not os.path.exists(digits):
        print(f"skipped: {digits} does not exist; fetch it with tools/digits")
        return 77
    failed = False
    changed = [line for line in difflib.ndiff(code_of("train_mnist_alone.cpp"), code_of("train_mnist.cpp"))
               if line.startswith("+ ")]
    print(f"train_mnist.cpp has {len(changed)} lines that train_mnist_alone.cpp has not")
    failed |= len(changed) > 10
    for dtype, (compared, limit) in LIMITS.items():
        wide = ["--double"] if dtype == "float64" else []
        for ranks in (1, 2, 4):
            expected = reference(ranks, digits, dtype)
            stages = [losses_of([sys.executable, run, "-n", str(ranks), example, "--digits", digits, "--stage", str(stage),
                                 *wide]) for stage in range(4)]
            far = distance(stages[0][:compared], expected[:compared])
            same = all(losses == stages[0] for losses in stages)
            print(f"{dtype}, {ranks} ranks: stages 0 to 3 {'have the same bits' if same else 'DIFFER'}, "
                  f"{far:.1e} from DistributedDataParallel over {compared} steps (at most {limit:.0e}), "
                  f"{distance(stages[0], expected):.1e} over all", flush=True)
            failed |= not same or far > limit
            if ranks == 1:
                far = distance(losses_of([alone, "--digits", digits, *wide])[:compared], expected[:compared])
                print(f"{dtype}, the program without distx: {far:.1e}", flush=True)
                failed |= far > limit
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
