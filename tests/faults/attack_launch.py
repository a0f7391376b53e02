#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Nests launchers at random, and kills launchers at random moments.

    tests/faults/attack_launch.py PROGRAM [--runs N] [--seed S]         PROGRAM is tests/connect/meets.cpp

Half of the runs start the program by one launcher inside another, of 1 to 3 ranks each: tools/run, tools/ranks, mpirun, and
stand-ins that set the variables of srun, mpiexec, torchrun and other programs. Either all processes are the ranks of one job, or the
run fails with a ConnectError or an error of a launcher; it never ends well as several jobs. The other half sends SIGKILL, SIGQUIT or
SIGTERM to tools/run or tools/ranks: to its first process, to the one that starts the ranks, to its group or to both processes.
No process and no file may be left; after both were killed, the next start removes the folder.
"""
import argparse
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RUN, RANKS = os.path.join(ROOT, "tools", "run"), os.path.join(ROOT, "tools", "ranks")
PATIENCE = 60
FOREIGN = ("DISTX_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_")
COMMON = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def stand_in(kind, size, command):
    """Starts processes with the variables that a launcher sets; returns the first status that is not 0."""
    agent, agents, port = 0, 1, free_port()
    if kind == "agents":  # of one torchrun, which srun or mpiexec has started
        agent = int(os.environ.get("SLURM_PROCID") or os.environ.get("PMI_RANK") or 0)
        agents = int(os.environ.get("SLURM_NTASKS") or os.environ.get("PMI_SIZE") or 1)
        port = int(os.environ["ATTACK_PORT"])
    processes = []
    for local in range(size):
        rank, ranks = agent * size + local, agents * size
        torch = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        variables = {
            "srun": {"SLURM_JOB_ID": port, "SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_STEP_NUM_TASKS": size,
                     "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_NUM_NODES": 1},
            "mpiexec": {"PMI_RANK": rank, "PMI_SIZE": size, "MPI_LOCALNRANKS": size},
            "torch": torch,
        }.get(kind, {**torch, "TORCHELASTIC_RUN_ID": "job", "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size, "GROUP_WORLD_SIZE": agents})
        processes.append(subprocess.Popen(command, env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
    # Ends the others when one fails, as launchers do: ranks whose variables agree wait for it.
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            for process in processes:
                process.terminate()
        time.sleep(0.01)
    return max(process.wait() != 0 for process in processes)


def launched(kind, size, command):
    # Not by `env python3`, which may find a shell script that selects a Python: bash ignores SIGQUIT.
    if kind == "run":
        return [sys.executable, RUN, "-n", str(size), "--grace", "1", *command]
    if kind == "ranks":
        return [sys.executable, RANKS, str(size), "--grace", "1", *command]
    if kind == "mpirun":
        return ["mpirun", "--oversubscribe", "-np", str(size), *command]
    return [sys.executable, os.path.abspath(__file__), "--stand-in", kind, str(size), *command]


def processes_of(folder):
    """Returns the processes whose temporary folder that is, and that have not exited."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                mine = f"TMPDIR={folder}\0".encode() in file.read()
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                if mine and file.read().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(name))
        except OSError:
            pass  # it has ended, is not a process, or is somebody else's
    return found


def wait_for(holds, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def environment(folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) and name not in COMMON}
    return {**kept, "TMPDIR": folder, "DISTX_LOG": "info", "ATTACK_PORT": str(free_port()), "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def left(folder, but=()):
    """Waits until nothing of a run is left; returns what is, as a list of sentences."""
    wrong = []
    if not wait_for(lambda: not processes_of(folder)):
        wrong.append(f"processes are left: {processes_of(folder)}")
    # Open MPI leaves its own folder.
    if not wait_for(lambda: not [name for name in os.listdir(folder) if not name.startswith(("ompi.", *but))], 5):
        wrong.append(f"files are left: {os.listdir(folder)}")
    return wrong


def nest(program, folder, chance):
    kinds = ["run", "ranks", "srun", "mpiexec", "torchrun", "torch"] + (["mpirun"] if shutil.which("mpirun") else [])
    outer, inner = chance.choice(kinds), chance.choice(kinds)
    while {outer, inner} <= {"torch", "torchrun"} or (outer == inner and outer not in ("run", "ranks")):
        outer, inner = chance.choice(kinds), chance.choice(kinds)  # variables that replace others cannot be noticed
    if inner in ("torchrun", "torch") and outer in ("srun", "mpiexec") and chance.random() < 0.5:
        inner = "agents"
    sizes = chance.randint(1, 3), chance.randint(1, 3)
    done = f"{outer} of {sizes[0]} around {inner} of {sizes[1]}"
    try:
        ended = subprocess.run(launched(outer, sizes[0], launched(inner, sizes[1], [program, "meets"])), env=environment(folder), text=True,
                               stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=2 * PATIENCE)
    except subprocess.TimeoutExpired:
        return [f"it does not end in {2 * PATIENCE} s"], done
    jobs = re.findall(r"^distx: connect: launcher .*, (\d+) ranks", ended.stderr, re.MULTILINE)
    wrong = []
    if ended.returncode == 0:
        done += f": {', '.join(jobs)} ranks"
        # The variables of an inner launcher may replace the outer's.
        if jobs != [str(sizes[0] * sizes[1])]:
            wrong.append(f"{sizes[0] * sizes[1]} processes are not one job")
    else:
        done += ": refused"
        if not re.search(r"^distx: connect|would start a separate job", ended.stderr, re.MULTILINE):
            wrong.append("the error is not distx's")
        if inner == "agents" or sizes == (1, 1) or (sizes[0] == 1 and inner in ("run", "ranks")):
            wrong.append("these are the ranks of one job")
    wrong += left(folder)
    return wrong + ([ended.stderr] if wrong else []), done


def kill(program, folder, chance):
    kind, number = chance.choice(["run", "ranks"]), chance.choice([signal.SIGKILL, signal.SIGQUIT, signal.SIGTERM])
    target = chance.choice(["first", "second", "group", "both"])
    ranks, delay = chance.randint(1, 3), chance.uniform(0, 0.4)
    rank = chance.choice(["(trap '' TERM; sleep 600) & sleep 600 & exec \"$0\" meets", "sleep 600 & setsid sleep 600 & wait", "exec sleep 600"])
    if target == "both":
        number, rank = signal.SIGKILL, "exec sleep 600"  # children of ranks are not followed then
    done = f"{number.name} to the {target} of {kind} of {ranks} after {delay:.3f} s"

    def as_started_by_a_terminal():
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    launcher = subprocess.Popen(launched(kind, ranks, ["sh", "-c", rank, program]), env=environment(folder), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                preexec_fn=as_started_by_a_terminal)
    time.sleep(delay)  # the moment of the attack
    try:
        with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children", encoding="ascii") as file:
            second = [int(word) for word in file.read().split()][:1]
    except OSError:
        second = []
    targets = {"first": [launcher.pid], "second": second, "group": [-launcher.pid], "both": [*second, launcher.pid]}[target]
    for process in targets or [launcher.pid]:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass  # it has ended
    wrong = []
    try:
        launcher.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        wrong.append("the launcher does not end")
        launcher.kill()
        launcher.wait()
    if target == "both":
        wait_for(lambda: not processes_of(folder))
        subprocess.run([RANKS, "1", "true"], env=environment(folder), check=True)
    return wrong + left(folder), done


def main():
    if sys.argv[1:2] == ["--stand-in"]:
        return stand_in(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    failures = 0
    for number in range(arguments.runs):
        folder = tempfile.mkdtemp(prefix="distx-attack-")
        try:
            wrong, done = (nest, kill)[number % 2](os.path.abspath(arguments.program), folder, chance)
        finally:
            for process in processes_of(folder):
                os.kill(process, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
        failures += bool(wrong)
        print(("wrong: " if wrong else "right: ") + done, *wrong, sep="\n    " if wrong else "", flush=True)
    print(f"{arguments.runs} runs, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
