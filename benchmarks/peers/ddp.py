#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times the steps of PyTorch's DistributedDataParallel on Gloo, one thread a rank: the peer of train_step.cpp.

    benchmarks/peers/ddp.py [--ranks 2] [--layers 2] [--width 1024] [--batch 64] [--bucket-bytes 26214400…] [--bind]
      [--json FILE]

Needs PyTorch (`pip install torch`), whose BLAS is MKL there. The model, the shape of the data, the optimizer, the turns
and the names of the figures are those of train_step; `alone` is the same model without DistributedDataParallel. All
bucket sizes take turns with it in one run. With --bind every rank and its threads stay on one core.
"""
import argparse
import json
import os
import socket
import statistics
import tempfile
import time


def train(rank, options, result):
    if options.bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})  # before any thread starts
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=options.ranks)
    widths = [784] + [options.width] * options.layers + [10]
    inputs = torch.rand(options.batch, widths[0]) * 2 - 1
    labels = torch.arange(options.batch) * 7 % 10

    def subject(name, bucket_bytes=None):
        layers = []
        for i, (before, after) in enumerate(zip(widths, widths[1:])):
            layers += [torch.nn.Linear(before, after)] + ([torch.nn.ReLU()] if i + 2 < len(widths) else [])
        model = torch.nn.Sequential(*layers)
        if bucket_bytes is not None:
            model = DistributedDataParallel(model, gradient_as_bucket_view=True,
                                            bucket_cap_mb=bucket_bytes / 2**20)
        if options.optimizer == "adamw":
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        return {"name": name, "bucket_bytes": bucket_bytes, "model": model, "optimizer": optimizer, "all": [], "update": []}

    def step(each):
        begin = time.perf_counter()
        each["optimizer"].zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(each["model"](inputs), labels).backward()
        before = time.perf_counter()
        each["optimizer"].step()
        end = time.perf_counter()
        return end - begin, end - before

    subjects = [subject("alone")] + [subject("overlap", size) for size in options.bucket_bytes]
    for turn in range(options.rounds + 1):
        first = turn % len(subjects)
        for each in subjects[first:] + subjects[:first]:
            torch.distributed.barrier()
            times = torch.tensor([step(each) for _ in range(options.steps)], dtype=torch.float64).median(0).values
            torch.distributed.all_reduce(times)
            if turn > 0:  # the first one warms up
                each["all"].append(times[0].item() / options.ranks)
                each["update"].append(times[1].item() / options.ranks)
    if rank == 0:
        write_report(options, widths, subjects, "PyTorch " + torch.__version__, result)
    torch.distributed.barrier()
    os._exit(0)  # in order, Gloo's threads end a process with an abort now and then


def write_report(options, widths, subjects, backend, path):
    alone = subjects[0]
    update = statistics.median(alone["update"])
    modes = []
    for each in subjects:
        seconds = statistics.median(each["all"])
        exposed = statistics.median(a - b for a, b in zip(each["all"], alone["all"]))
        modes.append({"name": each["name"], "bucket_bytes": each["bucket_bytes"], "seconds": seconds, "rounds": each["all"], "exposed": exposed,
                      "exposed_share": exposed / seconds, "update": update,
                      "compute": statistics.median(alone["all"]) - update})
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"backend": backend + ", gloo", "ranks": options.ranks, "zero": 0,
                   "optimizer": options.optimizer, "widths": widths, "batch": options.batch,
                   "parameters": sum(p.numel() for p in subjects[0]["model"].parameters()),
                   "bound": options.bind, "modes": modes}, file, indent=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--bucket-bytes", type=int, nargs="+", default=[25 << 20])
    parser.add_argument("--bind", action="store_true", help="one core for each rank and its threads")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    # Before PyTorch is loaded: its libraries look at these then.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    try:
        import torch.multiprocessing
    except ImportError:
        parser.exit(1, "PyTorch is absent: pip install torch\n")
    with tempfile.TemporaryDirectory() as folder:
        result = options.json or os.path.join(folder, "rows.json")
        torch.multiprocessing.spawn(train, (options, result), nprocs=options.ranks)
        with open(result, encoding="utf-8") as file:
            report = json.load(file)
    print(f"{report['parameters']} parameters, {report['ranks']} ranks ({report['backend']}), {report['optimizer']}")
    print(f"{'ms':10} {'step':>9} {'compute':>9} {'exposed':>9} {'update':>9} {'exposed':>9}")
    for mode in report["modes"]:
        size = mode["bucket_bytes"]
        print(f"{mode['name'] if size is None else f'{size / 2**20:g} MiB':10}" + "".join(f" {1e3 * mode[part]:>9.3f}" for part in
                                             ("seconds", "compute", "exposed", "update")) +
              f" {100 * mode['exposed_share']:>8.1f}%")


if __name__ == "__main__":
    main()
