#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kills one of three ranks of `train_lenet --elastic`: the others must reach the accuracy, in half of the runs after
another process has joined them. The program itself checks that all ranks have the same weights.

    tests/examples/elastic.py TRAIN_LENET shm|gloo|mpi [OPTION…]
"""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

RANKS = 3
ACCURACY = 0.9
RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "run")
MPIRUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "mpirun")
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


def train(program, backend, stage, victim, by_run, joins):
    """Returns what went wrong; empty if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = os.path.join(folder, "checkpoints")
        command = [program, "--elastic", "--backend", backend, "--zero", str(stage), "--epochs", "8" if joins else "4",
                   "--checkpoint", checkpoints, "--every", "10", *sys.argv[3:]]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        if backend == "mpi":
            processes = [subprocess.Popen([MPIRUN, "--timeout", "90", "--enable-recovery", str(RANKS), *command], **streams)]
        elif by_run:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            place = {"DISTX_CONNECT": f"tcp://127.0.0.1:{port}", "DISTX_TOKEN": "secret"}
            processes = [subprocess.Popen([RUN, "--no-kill", "--port", str(port), "-n", str(RANKS), *command],
                                          env=dict(os.environ, DISTX_TOKEN="secret"), **streams)]
        else:
            place = {"DISTX_FILE": os.path.join(folder, "meet")}
            variables = [{**place, "DISTX_RANK": str(rank), "DISTX_SIZE": str(RANKS)} for rank in range(RANKS)]
            processes = [subprocess.Popen(command, env=dict(os.environ, **each), **streams) for each in variables]
        end = time.monotonic() + 60
        # Once there is a checkpoint, the training is in progress.
        while not (os.path.isdir(checkpoints) and os.listdir(checkpoints)) and time.monotonic() < end:
            if any(process.poll() is not None for process in processes):
                break
            time.sleep(0.01)
        os.kill(child_of(processes[0].pid, victim) if by_run else processes[victim].pid, signal.SIGKILL)
        if joins:
            processes.append(subprocess.Popen(command, env=dict(os.environ, DISTX_JOIN="1", **place), **streams))
        outputs = []
        for process in processes:
            try:
                outputs.append(process.communicate(timeout=200)[0])
            except subprocess.TimeoutExpired:
                process.kill()
                outputs.append(process.communicate()[0] + "\nstill running after 200 s")
        statuses = [process.returncode for process in processes]
        text = "\n".join(outputs)
        continued = re.search(r"ranks are lost: (\d) continue after step (\d+)", text)
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
    wrong = [train(sys.argv[1], backend, *attack) for attack in ATTACKS[backend]]
    for each in filter(None, wrong):
        print(each)
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
