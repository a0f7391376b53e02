#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the weights of a model with PyTorch in several forms, has distx load and save them, and compares every value.

    tests/checkpoint/weights.py HAND_OVER   the program of hand_over.cpp

Skipped, with the reason, where PyPI's torch and safetensors are absent.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
except ImportError as error:
    print(f"skipped: {error}; install PyPI's torch and safetensors")
    sys.exit(77)

TOOL = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools", "distx-checkpoint")
RANKS = 2


def weights():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Linear(6, 4)).state_dict()


def save_sharded(rank, folder, dimension):
    """Saves on one of the ranks; matrices are sharded in `dimension`."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {name: distribute_tensor(value, mesh, [Shard(dimension if value.dim() == 2 else 0)]) for name, value in weights().items()}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(folder, save_distributed=True))
    dist.destroy_process_group()


def check(program, path, wanted, prefix=""):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, path, folder, prefix], check=True, timeout=120)
        step = os.path.join(folder, "step-000000000000")
        loaded = {name: torch.zeros_like(value) for name, value in wanted.items()}
        dcp.load(loaded, storage_reader=HuggingFaceStorageReader(step))
        whole = os.path.join(folder, "model.safetensors")
        subprocess.run([sys.executable, TOOL, "consolidate", step, whole], check=True, stdout=subprocess.DEVNULL)
        for found in (loaded, load_file(whole)):
            wrong = [name for name in wanted if not torch.equal(found[name], wanted[name])]
            if wrong or set(found) != set(wanted):
                sys.exit(f"distx has other values of {wrong or set(found) ^ set(wanted)}, loaded from {os.path.basename(path)}")
    print(f"distx loads {len(wanted)} tensors from {os.path.basename(path)}", flush=True)


def main():
    warnings.simplefilter("ignore")
    program, wanted = os.path.abspath(sys.argv[1]), weights()
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "plain.safetensors")
        save_file({"net." + name: value for name, value in wanted.items()}, plain)
        check(program, plain, wanted, "net.")
        half = os.path.join(folder, "bfloat16.safetensors")
        save_file({name: value.bfloat16() for name, value in wanted.items()}, half)
        check(program, half, {name: value.bfloat16().float() for name, value in wanted.items()})
        indexed = os.path.join(folder, "indexed")
        os.mkdir(indexed)
        mapped = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(wanted)}
        for file in set(mapped.values()):
            save_file({name: wanted[name] for name in wanted if mapped[name] == file}, os.path.join(indexed, file))
        with open(os.path.join(indexed, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": 1}, "weight_map": mapped}, file)
        check(program, indexed, wanted)
        consolidated = os.path.join(folder, "consolidated.safetensors")
        save_file(wanted, consolidated)
        for dimension in (0, 1):
            sharded = os.path.join(folder, f"sharded-{dimension}")
            torch.multiprocessing.spawn(save_sharded, (sharded, dimension), nprocs=RANKS)
            check(program, sharded, wanted)
            subprocess.run([sys.executable, TOOL, "diff", sharded, consolidated], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
