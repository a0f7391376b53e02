#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints the seconds that PyTorch's torch.distributed.checkpoint.save takes: the peer of checkpoint.cpp.

    benchmarks/peers/dcp.py --bytes BYTES --directory DIR [--ranks 2]

Each rank saves its part of BYTES as sharded tensors, and the files are synced, as PyTorch does by default.
"""
import argparse
import os
import shutil
import time


def save(rank, options):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{options.directory}.meet", rank=rank, world_size=options.ranks)
    mesh = init_device_mesh("cpu", (options.ranks,))
    rows = 2048
    count = max(1, options.bytes // (16 << 20))
    columns = options.bytes // count // 4 // rows
    state = {f"layer{i}": distribute_tensor(torch.ones(rows, columns), mesh, [Shard(0)]) for i in range(count)}
    dist.barrier()
    begin = time.perf_counter()
    dcp.save(state, checkpoint_id=options.directory)
    dist.barrier()
    if rank == 0:
        print(time.perf_counter() - begin, flush=True)
    dist.barrier()
    os._exit(0)  # in order, Gloo's threads end a process with an abort now and then


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    import torch.multiprocessing

    shutil.rmtree(options.directory, ignore_errors=True)
    meet = options.directory + ".meet"
    if os.path.exists(meet):
        os.remove(meet)
    torch.multiprocessing.spawn(save, args=(options,), nprocs=options.ranks)
    shutil.rmtree(options.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
