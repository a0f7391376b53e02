#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times all_reduce through torch.distributed: the backend of python/ and Gloo, which take turns in one run.

    benchmarks/peers/c10d.py [--ranks 2] [--max-bytes 67108864] [--rounds 9] [--call-bytes 67108864] [--groups] [--json FILE]

Needs PyTorch and the extension (`pip install --no-build-isolation ./python`). Prints the median time of a call,
for float32 tensors that are written before each call; with --groups also the time of `new_group`.
"""
import argparse
import json
import os
import socket
import statistics
import tempfile
import time


def measure(rank, options, port, result):
    import torch
    import torch.distributed as dist

    import distx_torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    backends = ["distx", "gloo"]
    groups = {}
    made = {backend: [] for backend in backends}
    for _ in range(21 if options.groups else 1):
        backends.reverse()
        for backend in backends:
            dist.barrier()
            began = time.perf_counter()
            groups[backend] = dist.new_group(backend=backend)
            made[backend].append(time.perf_counter() - began)
    rows = []
    size = 4
    while size <= options.max_bytes:
        tensor = torch.ones(size // 4)
        times = {backend: [] for backend in backends}
        for turn in range(options.rounds + 1):
            for backend in backends if turn % 2 else backends[::-1]:
                group = groups[backend]
                dist.barrier(group=group)
                for _ in range(max(3, min(300, options.call_bytes // size)) if turn else 1):
                    tensor.fill_(1)
                    began = time.perf_counter()
                    dist.all_reduce(tensor, group=group)
                    if turn:
                        times[backend].append(time.perf_counter() - began)
                assert tensor[-1] == options.ranks
        rows.append({"bytes": size, **{backend: statistics.median(times[backend]) for backend in backends}})
        if rank == 0:
            row = rows[-1]
            print(f"{size:>10} B  distx {row['distx'] * 1e6:10.1f} us  gloo {row['gloo'] * 1e6:10.1f} us  "
                  f"gloo/distx {row['gloo'] / row['distx']:6.1f}", flush=True)
        size *= 16 if size < 65536 else 4
    if rank == 0:
        if options.groups:
            print("new_group: " + ", ".join(f"{b} {statistics.median(made[b]) * 1e3:.2f} ms" for b in backends))
        with open(result, "w") as file:
            json.dump({"rows": rows, "new_group": {b: statistics.median(made[b]) for b in backends}}, file)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--max-bytes", type=int, default=1 << 26)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--call-bytes", type=int, default=1 << 26, help="of all calls of one turn, about")
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    import multiprocessing
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.abspath(options.json) if options.json else os.path.join(folder, "result")
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=measure, args=(rank, options, port, result)) for rank in range(options.ranks)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    return 1 if any(rank.exitcode for rank in ranks) else 0


if __name__ == "__main__":
    raise SystemExit(main())
