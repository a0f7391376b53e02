#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times all_reduce of torch.distributed on distx's backend in turn with Gloo, from 4 bytes to 64 MiB.

    benchmarks/torch_all_reduce.py FOLDER [--ranks 2] [--rounds 7]

FOLDER has the extension of python/, such as BUILD/tests/torch/c10d, which its test builds. Ranks are processes of one
thread each. In each round both backends take a turn at every size; prints the median of the rounds in microseconds.
"""
import argparse
import statistics
import sys
import time

from peers.ranks import run_script


def measure(rank, ranks, store, rounds):
    import torch
    import torch.distributed as dist
    import distx_torch  # noqa: F401 (registers the backend)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    groups = {"gloo": dist.new_group(backend="gloo"), "distx": dist.new_group(backend="cpu:distx")}
    for power in range(2, 27, 2):
        x = torch.ones(2**power // 4)
        calls = max(3, min(2000, 2**25 // 2**power))
        times = {name: [] for name in groups}
        for turn in range(rounds + 1):
            for name, group in groups.items():
                for _ in range(3):
                    dist.all_reduce(x, group=group)
                begin = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(x, group=group)
                if turn > 0:
                    times[name].append(1e6 * (time.perf_counter() - begin) / calls)
                x.fill_(1)
        if rank == 0:
            gloo, distx = (statistics.median(times[name]) for name in ("gloo", "distx"))
            print(f"{2**power:9} bytes: Gloo {gloo:9.1f} us, distx {distx:9.1f} us, {gloo / distx:6.1f} times as fast", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, options.folder)
    if options.rank:
        return measure(int(options.rank[0]), options.ranks, options.rank[1], options.rounds)
    print(run_script(__file__, options.ranks, options.folder, "--ranks", str(options.ranks), "--rounds", str(options.rounds)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
