#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Lets a read of a training's loader hang at a random sample, on a random rank, and checks how all ranks end.

    tests/faults/attack_loader.py PROGRAM [--runs N] [--seed S]

PROGRAM is built of reader.cpp. The read hangs in a system call, at a lock or in a pipe; the rank then waits for the batch, leaves the
loop, throws or exits. The rank that waits must end by a TimeoutError that names the sample, after the loader's deadline and not much
later; the others by an error that names its cause; and the process must exit, although its worker thread never returns.
"""
import argparse
import random
import re
import subprocess
import sys
import time

SLACK = 15  # seconds beyond the deadline, on a host that is busy with other tests
ENDED = re.compile(r"^rank (\d+) ended by (\w+): (.*)$", re.MULTILINE)


def faults(ranks, sample, rank, end, deadline, seconds, output, code):
    """Returns what is wrong with a run, as text; empty if nothing is."""
    if code not in (0, 1):
        return f"the process ended with {code}"
    if seconds > deadline + SLACK:
        return f"the process ended after {seconds:.1f} s"
    ends = {int(number): (kind, words) for number, kind, words in ENDED.findall(output)}
    expected = {"next": "TimeoutError", "break": "return", "throw": "exception"}.get(end)
    if expected is None and f"rank {rank} exits" not in output:
        return "the rank did not exit"
    if expected is not None and ends.get(rank, ("nothing",))[0] != expected:
        return f"rank {rank} ended by {ends.get(rank)}, not {expected}"
    number = sample * ranks + rank
    if end == "next" and not re.search(rf"DataLoader on rank {rank} of {ranks}: timed out .*\bsamples? [^)]*\b{number}\b[^)]* of epoch 0",
                                       ends[rank][1]):
        return f"the error does not name sample {number}: {ends[rank][1]}"
    if end == "next" and seconds < deadline:
        return f"the process ended after {seconds:.1f} s, before the deadline"
    for other in set(range(ranks)) - {rank}:
        kind, words = ends.get(other, ("nothing", ""))
        if kind not in ("RevokedError", "RankFailure"):
            return f"rank {other} ended by {kind}: {words}"
        if end == "next" and f"rank {rank} revoked the communicator: DataLoader on rank {rank}" not in words:
            return f"rank {other} does not name the cause: {words}"
    return ""


def run(program, choose):
    """Makes one run; returns how it was made, and what is wrong with it."""
    backend = choose.choice(["threads", "shm"])
    ranks = choose.choice([2, 3, 4])
    end = choose.choice(["next", "break", "throw"] + (["exit"] if backend == "shm" else []))
    # A rank that does not wait must reach a batch before the one that hangs, which is made ahead.
    sample = choose.randrange(0, 16) if end == "next" else choose.randrange(2, 10)
    rank, moment = choose.randrange(ranks), choose.choice(["sleep", "lock", "pipe"])
    deadline = choose.choice([0.1, 0.3, 1.0])
    arguments = [backend, ranks, sample, rank, moment, end, int(1000 * deadline)]
    how = " ".join(map(str, arguments))
    begin = time.monotonic()
    try:
        done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=deadline + 4 * SLACK, check=False)
    except subprocess.TimeoutExpired as hung:
        return how, f"it did not end: {hung.output!r}"
    seconds = time.monotonic() - begin
    wrong = faults(ranks, sample, rank, end, deadline, seconds, done.stdout, done.returncode)
    return how, wrong and f"{wrong}\n{done.stdout}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    choose = random.Random(options.seed)
    wrong = 0
    for _ in range(options.runs):
        how, fault = run(options.program, choose)
        if fault:
            wrong += 1
            print(f"reader {how}: {fault}", flush=True)
    print(f"{options.runs} runs, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
