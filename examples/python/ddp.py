#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trains a network on real digits with PyTorch's DistributedDataParallel; distx moves the gradients.

    pip install --no-build-isolation ./python && tools/digits build/data/digits.csv.gz
    torchrun --nproc-per-node 2 examples/python/ddp.py
"""
import argparse

import distx_torch  # noqa: F401 (registers the backend)
import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 64  # images of a step, of all ranks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--digits", default="build/data/digits.csv.gz")
    parser.add_argument("--backend", default="cpu:distx")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    table = torch.from_numpy(numpy.loadtxt(options.digits, delimiter=",", dtype=numpy.float32))
    images, labels = table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64].long()
    learnt = TensorDataset(images[:1536], labels[:1536])  # the others are held out
    sampler = DistributedSampler(learnt, seed=1)
    loader = DataLoader(learnt, BATCH // ranks, sampler=sampler)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                          nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        mean = torch.zeros(())
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            mean += loss.detach() / len(loader) / ranks
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.9g}", flush=True)
    with torch.no_grad():
        right = (model(images[1536:]).argmax(1) == labels[1536:]).double().mean()
    if rank == 0:
        print(f"accuracy {right.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
