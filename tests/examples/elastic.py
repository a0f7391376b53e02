#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kills one of three ranks of train_elastic: the others must reach the accuracy, in half of the runs after
another process has joined them. The program itself checks that all ranks have the same weights.

    tests/examples/elastic.py TRAIN_ELASTIC shm|gloo|mpi [OPTION…]
"""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from programs import MPIRUN, RUN, refused

RANKS = 3
ACCURACY = 0.9
# Stages of ZeRO, the ranks that are killed, whether a launcher starts them, else they meet in a folder, and whether another
# process joins.
ATTACKS = {"shm": [(1, 0, False, False), (3, 1, False, False), (2, 0, False, True), (0, 1, True, True)],
           "gloo": [(2, 1, False, False), (1, 2, True, False), (3, 2, False, True)],
           "mpi": [(1, 0, True, False), (2, 2, True, False)]}


def child_of(process, rank):
    """Returns the id of a rank that a launcher has started, below that process; None if there is none."""
    try:
        with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
            for child in file.read().split():
                with open(f"/proc/{child}/environ", "rb") as environment:
                    if {f"DISTX_RANK={rank}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()} & set(environment.read().split(b"\0")):
                        return int(child)
                if found := child_of(child, rank):
                    return found
    except OSError:
        pass
    return None


class Started:
    """A process whose output is in a file, which can be read while it runs."""

    def __init__(self, path, command, **environment):
        self.path = path
        with open(path, "wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                            env=dict(os.environ, **environment))

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait(self, seconds):
        try:
            self.process.wait(seconds)
            return self.text()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self.text()}\nstill running after {seconds} s"


def start(command, backend, by_run, folder):
    """Returns the processes, and the variables with which another one joins them."""
    out = os.path.join(folder, "output-")
    if backend == "mpi":
        return [Started(out + "0", [MPIRUN, "--timeout", "90", "--enable-recovery", str(RANKS), *command])], {}
    if by_run:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        launch = [RUN, "--no-kill", "--port", str(port), "-n", str(RANKS)]
        place = {"DISTX_CONNECT": f"tcp://127.0.0.1:{port}", "DISTX_TOKEN": "secret"}
        return [Started(out + "0", [*launch, *command], DISTX_TOKEN="secret")], place
    place = {"DISTX_FILE": os.path.join(folder, "meet")}
    return [Started(f"{out}{rank}", command, **place, DISTX_RANK=str(rank), DISTX_SIZE=str(RANKS)) for rank in range(RANKS)], place


def train(program, backend, stage, victim, by_run, joins):
    """Returns what went wrong; empty if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--backend", backend, "--zero", str(stage), "--epochs", "8" if joins else "4", *sys.argv[3:]]
        started, place = start(command, backend, by_run, folder)
        end = time.monotonic() + 60
        # The first epoch has more steps.
        while "step 50:" not in started[0].text() and time.monotonic() < end:
            if any(each.process.poll() is not None for each in started):
                break
            time.sleep(0.01)
        first = started[0].process.pid
        os.kill(child_of(first, victim) if by_run else started[victim].process.pid, signal.SIGKILL)
        if joins:
            started.append(Started(os.path.join(folder, "output-joined"), command, **place, DISTX_JOIN="1"))
        outputs = [each.wait(200) for each in started]
        statuses = [each.process.returncode for each in started]
        text = "\n".join(outputs)
        continued = re.search(r"ranks failed: (\d) continue after step (\d+)", text)
        accuracy = re.search(r"accuracy on \d+ held-out digits: ([0-9.]+)", text)
        right = [0] if by_run else [-signal.SIGKILL if rank == victim else 0 for rank in range(RANKS)]
        if statuses != right + ([0] if joins else []):
            return f"the ranks end with {statuses}:\n{text}"
        if continued is None or int(continued[1]) != RANKS - 1:
            return f"no ranks say that they continue:\n{text}"
        joined = re.search(r"ranks have joined: (\d) continue after step (\d+)", text)
        if joins and (joined is None or int(joined[1]) != RANKS):
            return f"no ranks say that another one has joined:\n{text}"
        if accuracy is None or float(accuracy[1]) < ACCURACY:
            return f"the accuracy is not {ACCURACY}:\n{text}"
        print(f"{backend}{' by a launcher' if by_run else ''}, stage {stage}: rank {victim} of {RANKS} was killed, the others "
              f"continued after step {continued[2]}, " + (f"were joined after step {joined[2]}, " if joins else "") +
              f"and reached {accuracy[1]}", flush=True)
        return ""


def main():
    backend = sys.argv[2]
    refused([sys.argv[1], "--backend", backend, *sys.argv[3:]], "needs several processes", 1)
    wrong = [train(sys.argv[1], backend, *attack) for attack in ATTACKS[backend]]
    for each in filter(None, wrong):
        print(each)
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
