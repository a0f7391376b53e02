#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trains a network on real digits with PyTorch's FSDP2 over distx, and continues a checkpoint on any number of ranks.

    pip install --no-build-isolation ./python && tools/digits build/data/digits.csv.gz
    torchrun --nproc-per-node 2 examples/python/fsdp.py --epochs 5 --checkpoint build/digits
    torchrun --nproc-per-node 4 examples/python/fsdp.py --epochs 10 --checkpoint build/digits
"""
import argparse
import os

import distx_torch  # noqa: F401 (registers the backend)
import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BATCH = 64  # images of a step, of all ranks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--digits", default="build/data/digits.csv.gz")
    parser.add_argument("--backend", default="cpu:distx")
    parser.add_argument("--epochs", type=int, default=10, help="of all runs together")
    parser.add_argument("--checkpoint", help="folder to save to, and to continue from if it exists")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    table = torch.from_numpy(numpy.loadtxt(options.digits, delimiter=",", dtype=numpy.float32))
    images, labels = table[:, :64] / 16, table[:, 64].long()
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    epochs = torch.tensor(0)
    if options.checkpoint and os.path.exists(options.checkpoint):
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.load({"model": weights, "optimizer": moments, "epochs": epochs}, checkpoint_id=options.checkpoint)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for epoch in range(epochs.item(), options.epochs):
        order = torch.randperm(1536, generator=torch.Generator().manual_seed(epoch))  # the other images are held out
        mean = torch.zeros(())
        for batch in order.view(-1, BATCH):
            mine = batch[rank::ranks]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            mean += loss.detach() * BATCH / len(order) / ranks
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.9g}", flush=True)
    with torch.no_grad():
        right = (model(images[1536:]).argmax(1) == labels[1536:]).double().mean()
    if rank == 0:
        print(f"accuracy {right.item():.4f}")
    if options.checkpoint:
        weights, moments = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": moments, "epochs": epochs.fill_(options.epochs)},
                        checkpoint_id=options.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
