#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loads checkpoints of train_lenet and train_gpt with PyTorch, and compares every tensor with the shards' bytes.

    tests/checkpoint/pytorch.py TRAIN_LENET TRAIN_GPT

Skipped, with the reason, where PyPI's torch and safetensors are absent.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors import safe_open
    from safetensors.torch import load_file
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
except ImportError as error:
    print(f"skipped: {error}; install PyPI's torch and safetensors")
    sys.exit(77)

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LENET = ["--synthetic", "--epochs", "1", "--batch-size", "160"]
GPT = ["--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "1", "--steps", "3", "--sample", "0"]
# The program's position among the arguments, the ranks and the flags.
RUNS = [(1, 3, [*LENET, "--zero", "3", "--optimizer", "adamw"]),
        (1, 3, [*LENET, "--zero", "2", "--precision", "bf16", "--optimizer", "muon"]),
        (2, 4, [*GPT, "--zero", "3"])]


def merged(folder, state):
    """The tensors as the shards' offsets say."""
    whole = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
    for file in glob.glob(os.path.join(folder, "*.safetensors")):
        with safe_open(file, "pt") as shard:
            info = json.loads(shard.metadata()["DCP_SHARDING_INFO"])
            for name in shard.keys():
                tensor = shard.get_tensor(name)
                offsets = info[name]["saved_offsets"]
                whole[name][tuple(slice(begin, begin + size) for begin, size in zip(offsets, tensor.shape))] = tensor
    return whole


def check(folder):
    with open(os.path.join(folder, "checkpoint.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    state = {name: torch.zeros(tensor["shape"], dtype=TYPES[tensor["dtype"]]) for name, tensor in manifest["tensors"].items()}
    steps = {f"optim.state.{name}.step": torch.zeros(()) for name in manifest["updates"]}
    state |= steps
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    wanted = merged(folder, state)
    wrong = [name for name in state if not torch.equal(state[name], wanted[name])]
    if wrong:
        sys.exit(f"PyTorch loads other values of {wrong}")
    if any(step.item() != manifest["step"] for step in steps.values()):
        sys.exit("the numbers of updates differ")
    print(f"PyTorch {torch.__version__} loads {len(state)} tensors of {manifest['ranks']} ranks", flush=True)
    with tempfile.TemporaryDirectory() as whole:
        # Tensors without dimensions are left out: consolidate_safetensors_files writes zeros for them.
        consolidate_safetensors_files(folder, whole, fqn_to_index_mapping=dict.fromkeys(state, 1))
        consolidated = load_file(glob.glob(os.path.join(whole, "*.safetensors"))[0])
        wrong = [name for name in wanted if name not in steps and not torch.equal(consolidated[name], wanted[name])]
    if wrong:
        sys.exit(f"PyTorch consolidates other values of {wrong}")


def main():
    warnings.simplefilter("ignore")
    for program, ranks, flags in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "run")
            subprocess.run([sys.argv[program], "--backend", "threads", "--ranks", str(ranks), *flags, "--checkpoint", saved],
                           check=True, stdin=subprocess.DEVNULL)
            check(glob.glob(os.path.join(saved, "step-*"))[0])


if __name__ == "__main__":
    main()
