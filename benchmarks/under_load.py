#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares all-reduce on shared memory with MPI's own while other programs use the processors; prints a table.

    benchmarks/under_load.py build/benchmarks/under_load [--ranks 1 2 4 8] [--loops 0 1 2 4] [--seconds 3]

Each busy loop is a process that this script starts and ends. A ratio is the median time on distx divided by that on MPI, in
alternating batches of the same ranks: 1.1 means that distx takes 10% longer.
"""
import argparse
import contextlib
import os
import shlex
import subprocess
import sys


@contextlib.contextmanager
def busy_loops(count):
    """Keeps `count` processes busy during a scope."""
    loops = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE))
        for loop in loops:
            loop.stdout.readline()  # it has started
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
            loop.stdout.close()


def measure(program, ranks, seconds, words):
    """Returns the rows of one run, as lists of words."""
    command = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), *words]
    if ranks > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    environment = dict(os.environ)
    if os.geteuid() == 0:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command += ["-np", str(ranks), os.path.abspath(program), str(seconds)]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return [line.split() for line in run.stdout.splitlines() if line.strip()]


def time(microseconds):
    """Returns a time with three significant digits."""
    value = float(microseconds)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
parser.add_argument("--loops", type=int, nargs="+", default=[0, 1, 2, 4])
parser.add_argument("--seconds", type=float, default=3, help="of each size and memory (default: 3)")
parser.add_argument("--mpirun", default="", metavar="WORDS", help="options of mpirun, such as '--bind-to none'")
options = parser.parse_args()

print(f"load before: {os.getloadavg()[0]:.2f}, processors: {len(os.sched_getaffinity(0))}", file=sys.stderr)
print("| ranks | busy loops | 4 B, µs: distx | MPI | ratio | 1 MiB, communicator memory | MPI | ratio | 1 MiB, user memory "
      "| MPI | ratio |")
print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
worst = (0, "")
for count in options.ranks:
    for load in options.loops:
        with busy_loops(load):
            rows = measure(options.program, count, options.seconds, shlex.split(options.mpirun))
        cells = [str(count), str(load)]
        for size, memory, ours, theirs, ratio, _ in rows:
            cells += [time(ours), time(theirs), f"{float(ratio):.2f}"]
            worst = max(worst, (float(ratio), f"{count} ranks, {load} busy loops, {size} B, {memory} memory"))
        print("| " + " | ".join(cells) + " |", flush=True)
print(f"the greatest ratio is {worst[0]:.2f}: {worst[1]}", file=sys.stderr)
