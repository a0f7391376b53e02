#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times steps of pipelines by distx in turn with PyTorch's torch.distributed.pipelining, both over Gloo.

    benchmarks/pipeline.py BUILD [--ranks 4] [--micro-batches 8] [--milliseconds 10] [--kib 256] [--alternations 5]

Needs PyTorch, and BUILD/benchmarks/pipeline with Gloo. A stage computes on a device, which leaves the core free: it sleeps.
Prints the median of the alternations' medians in milliseconds, and its ratio to the time that the schedule plans.
"""
import argparse
import collections
import re
import statistics
import sys
import time

from peers.ranks import run_program, run_script

CHUNKS = 2  # of the interleaved schedule


def train(rank, store, options):
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    ranks, count = options.ranks, options.micro_batches

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, forward, backward):
            ctx.backward_time = backward
            time.sleep(forward)
            return x + weight

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(ctx.backward_time)
            return gradient, gradient.sum().reshape(1), None, None

    class Stage(torch.nn.Module):
        def __init__(self, forward, backward):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.times = (forward, backward)

        def forward(self, x):
            return Pass.apply(x, self.weight, *self.times)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    x = torch.zeros(count, options.kib * 256, requires_grad=True)  # also the first stage has a gradient of its input
    target = torch.zeros(count, options.kib * 256)
    kinds = {"GPipe": (pipelining.ScheduleGPipe, 1, False), "1F1B": (pipelining.Schedule1F1B, 1, False),
             "interleaved 1F1B": (pipelining.ScheduleInterleaved1F1B, CHUNKS, False),
             "ZB-H1": (pipelining.ScheduleInterleavedZeroBubble, 1, True)}
    for name, (kind, chunks, split) in kinds.items():
        each = 1e-3 * options.milliseconds / chunks
        stages = []
        for chunk in range(chunks):
            stage = Stage(each, each if split else 2 * each)
            weights = (lambda: lambda: time.sleep(each)) if split else None
            stages.append(pipelining.PipelineStage(stage, chunk * ranks + rank, chunks * ranks, torch.device("cpu"), dw_builder=weights))
        try:
            schedule = kind(stages if chunks > 1 or split else stages[0], count, loss_fn=lambda out, _: out[0, 0])
            times = []
            for turn in range(options.rounds + 1):
                dist.barrier()
                begin = time.perf_counter()
                schedule.step(*((x,) if rank == 0 else ()), **({"target": target} if rank == ranks - 1 else {}))
                slowest = torch.tensor([time.perf_counter() - begin])
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                if turn > 0:
                    times.append(slowest.item())
        except Exception as error:  # noqa: BLE001 (the other schedules are timed)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            raise
        if rank == 0:
            print(f"{name} measured {1e3 * statistics.median(times):.2f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--milliseconds", type=float, default=10)
    parser.add_argument("--kib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return train(int(options.rank[0]), options.rank[1], options)
    flags = ["--micro-batches", str(options.micro_batches), "--milliseconds", str(options.milliseconds),
             "--kib", str(options.kib), "--rounds", str(options.rounds)]
    measured, planned = collections.defaultdict(list), {}
    for _ in range(options.alternations):
        text = run_program(options.build, "pipeline", options.ranks, *flags)
        for name, plan, time_of_step in re.findall(r"^(\S.*?) +planned +(\S+) ms, measured +(\S+) ms", text, re.MULTILINE):
            planned[name] = float(plan)
            measured[name, "distx"].append(float(time_of_step))
        text = run_script(__file__, options.ranks, options.build, "--ranks", str(options.ranks), *flags)
        for name, time_of_step in re.findall(r"^(\S.*?) measured (\S+)$", text, re.MULTILINE):
            measured[name, "PyTorch"].append(float(time_of_step))
    for (name, library), values in measured.items():
        middle = statistics.median(values)
        print(f"{name:17} {library:8} {middle:7.1f} ms, {middle / planned[name]:.3f} of the planned {planned[name]:.1f} ms"
              f"  ({min(values):.1f} to {max(values):.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
