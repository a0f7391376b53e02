#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Has one rank of a job fork at a random moment, again and again, and checks that the job ends with the right results.

    tests/faults/attack_fork.py PROGRAM --backend threads|shm|gloo|hierarchical|mpi|mpi-vendor [--runs N] [--seed N] [--every]

PROGRAM is built of forker.cpp, which describes the moments and the ways in which the forked process ends. Each job has two or
three ranks, which meet in a folder, over TCP or by mpirun. Every rank must say that it ends right, the job must exit with 0 and
leave no files. With --every each way is tried once at the first and at the last rank, between calls and within one, instead of N
random ones.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "..", "tools")
WAYS = ["exit", "_exit", "exec", "return", "throw", "live", "use"]
PATIENCE = 120  # seconds, on a host that is busy with other tests


def launcher_of(backend, ranks, over_tcp):
    if backend == "threads":
        return []
    if backend.startswith("mpi"):
        return [os.path.join(HERE, "..", "mpirun"), str(ranks)]
    return [os.path.join(TOOLS, "run"), "-n", str(ranks)] if over_tcp else [os.path.join(TOOLS, "ranks"), str(ranks)]


def attack(program, backend, ranks, over_tcp, way, rank, moment):
    """Returns what went wrong, as a list of sentences."""
    folder = tempfile.mkdtemp(prefix="distx-fork-")
    output = os.path.join(folder, "output")
    wrong = []
    try:
        command = launcher_of(backend, ranks, over_tcp) + [program, backend, way, str(rank), str(moment)]
        with open(output, "wb") as file:
            try:
                status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=PATIENCE, check=False,
                                        env=dict(os.environ, TMPDIR=folder)).returncode
            except subprocess.TimeoutExpired:
                return ["the job does not end"]
        with open(output, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if status != 0:
            wrong.append(f"the job ended with status {status}")
        right = sum(f"rank {number} ends right" in text for number in range(ranks))
        if right != ranks:
            wrong.append(f"{right} of {ranks} ranks ended right")
        if left := set(os.listdir(folder)) - {"output"}:
            if any(not name.startswith(("ompi.", "openmpi-")) for name in left):
                wrong.append("files are left: " + ", ".join(sorted(left)))
        return wrong + text.splitlines()[-8:] if wrong else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--backend", choices=["threads", "shm", "gloo", "hierarchical", "mpi", "mpi-vendor"], required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", action="store_true")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    jobs = []
    if arguments.every:
        jobs = [(2, number % 2 == 1, way, rank, moment)
                for number, way in enumerate(WAYS) for rank, moment in ((0, 6), (1, 7))]
    for _ in range(0 if arguments.every else arguments.runs):
        ranks = 2 if arguments.backend == "threads" else chance.choice([2, 3])
        moment = chance.choice([chance.randrange(24), -chance.randrange(1, 20000)])
        jobs.append((ranks, chance.random() < 0.5, chance.choice(WAYS), chance.randrange(ranks), moment))
    failures = 0
    for job in jobs:
        if wrong := attack(os.path.abspath(arguments.program), arguments.backend, *job):
            failures += 1
            print(f"wrong: ranks, over TCP, way, rank, moment: {job}\n    " + "\n    ".join(wrong), flush=True)
    print(f"{len(jobs)} runs, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
