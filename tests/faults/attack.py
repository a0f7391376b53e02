#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kills or stops one rank of a training at a random moment, again and again, and checks how the others end.

    tests/faults/attack.py PROGRAM --backend shm|mpi|mpi-vendor|gloo [--kills N] [--stops N] [--inside N] [--elastic N] [--join N]
                           [--hosts N] [--over-tcp] [--pipeline] [--ranks N] [--seed N] [--strict]

With mpi-vendor, large collectives are MPI's own. With --hosts the ranks over MPI are on that many hosts, made of namespaces, which
needs root. With --pipeline the trainings that are killed and stopped are pipelines of two stages. With --inside rank 1 stops itself N times while it reads the other ranks' memory. With --elastic N trainings that continue on the
ranks that are left have one rank killed, every third of them a second one, and must end with the weights of an undisturbed one;
or with a CheckpointError if a rank and the next one are killed. With --over-tcp these are started by tools/run --no-kill, and
must end with a ConnectError if rank 0, which serves the others, is killed. With --join N a rank is killed and another process
joins, which is killed as well in every third training, before another one joins: as many as began must end with these weights.

PROGRAM is built of trainee.cpp. Every survivor must end by a TimeoutError, RankFailure or RevokedError within a few seconds of the
deadline. A call that times out must not have waited for less than 0.9 of the deadline, nor for more than twice the deadline; with --strict, which needs a quiet
host, not for more than 1.1 times. A rank that was stopped continues later, and must end in the same way. After each attack every process
of the job must exit, its folder must have no files but this script's, and /dev/shm no new ones.
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
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "hosts"))
import namespaces  # noqa: E402

DEADLINE = 3  # seconds; the programs' own
SLACK = 5  # seconds from the deadline to the last report; over MPI, a rank that unwinds waits 2 s for the others
ATTACKED = object()  # stands for the file whose existence notifies a job that the attack is over
PATIENCE = 60  # for what has no deadline, on a host that is busy with other tests
SHARED = "/dev/shm"
# The rank, the seconds in the call, and the seconds since the first call of the step, some of which are asynchronous.
WAITED = re.compile(r"^rank (\d+) waited ([0-9.]+) s, ([0-9.]+) s after the step began$", re.MULTILINE)
TYPED = re.compile(r"^rank (\d+) ended by (TimeoutError|RankFailure|RevokedError): (.*)$", re.MULTILINE)


class Job:
    """The ranks of one training."""

    hosts = None  # the namespaces in which ranks over MPI run

    def __init__(self, program, backend, stage, ranks, how=(), over_tcp=False, by_hand=False):
        self.shared_before = shared_files()
        self.folder = tempfile.mkdtemp(prefix="distx-attack-")
        # Temporary files are then found, and so is every process of the job.
        self.environment = dict(os.environ, TMPDIR=self.folder)
        self.output = open(os.path.join(self.folder, "output"), "a+b")
        self.attacked = os.path.join(self.folder, "attacked")
        how = [self.attacked if word is ATTACKED else word for word in how]
        self.command = command = [program, backend, str(stage), str(DEADLINE), *how]
        self.streams = streams = {"stdin": subprocess.DEVNULL, "stdout": self.output, "stderr": subprocess.STDOUT,
                                  "start_new_session": True}
        self.processes = []
        if backend.startswith("mpi"):
            mpirun = [os.path.join(os.path.dirname(HERE), "mpirun"), "--timeout", "300", "--enable-recovery", str(ranks)]
            if self.hosts:
                slots = [ranks // len(self.hosts.names) + (host < ranks % len(self.hosts.names)) for host in range(len(self.hosts.names))]
                mpirun = self.hosts.mpirun(slots, "--enable-recovery", OMPI_MCA_mpi_yield_when_idle=1)
            # Each rank writes to the file itself: a busy mpirun passes output on late.
            itself = ["sh", "-c", 'exec "$@" >>"$0" 2>&1', self.output.name]
            self.processes.append(subprocess.Popen([*mpirun, *itself, *command], env=self.environment, **streams))
        elif over_tcp and not by_hand:
            launcher = os.path.join(HERE, "..", "..", "tools", "run")
            self.processes.append(subprocess.Popen([launcher, "--no-kill", "-n", str(ranks), *command], env=self.environment, **streams))
        else:
            self.place = {"DISTX_FILE": os.path.join(self.folder, "meet")}
            if over_tcp:
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", 0))
                    self.place = {"DISTX_CONNECT": f"tcp://127.0.0.1:{listener.getsockname()[1]}"}
            for rank in range(ranks):
                self.start({"DISTX_RANK": str(rank), "DISTX_SIZE": str(ranks)})
        self.ranks = ranks

    def start(self, variables):
        """Starts another process of the program."""
        environment = dict(self.environment, **self.place, **variables)
        self.processes.append(subprocess.Popen(self.command, env=environment, **self.streams))
        return self.processes[-1]

    def end_attack(self):
        """Notifies the ranks that the attack is over: a training that continues may end."""
        with open(self.attacked, "w", encoding="utf-8"):
            pass

    def text(self):
        with open(self.output.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for(self, holds, seconds=PATIENCE):
        """Waits until `holds()`. `paused` is then the longest time that the host did not run this script, if a second or more: a
        virtual machine can stand still for seconds, and the ranks with it."""
        self.paused = 0
        end = time.monotonic() + seconds
        while not holds():
            now = time.monotonic()
            if now > end:
                return False
            time.sleep(0.02)
            pause = time.monotonic() - now
            self.paused = max(self.paused, pause if pause >= 1 else 0)
        return True

    def trains(self):
        return self.text().count(" trains\n") == self.ranks

    def ids(self):
        return {int(rank): int(process) for rank, process in re.findall(r"^rank (\d+) is process (\d+)$", self.text(), re.MULTILINE)}

    def running(self):
        """Returns the ids of the job's processes that have not exited, launchers included."""
        for process in self.processes:
            process.poll()
        mark = f"TMPDIR={self.folder}\0".encode()
        return [process for process in all_processes() if mark in contents(process, "environ") and is_alive(process)]

    def left(self):
        """Waits until every process has exited; returns what is left of the job, as a list of sentences."""
        wrong = []
        if not self.wait_for(lambda: not self.running()):
            names = {process: f"rank {rank}" for rank, process in self.ids().items()}
            wrong.append("processes do not exit: " + ", ".join(names.get(process, str(process)) for process in self.running()))
        if files := set(os.listdir(self.folder)) - {"output", "attacked"}:
            wrong.append("files are left: " + ", ".join(sorted(files)))
        if not self.wait_for(lambda: not self.shared_left()):
            wrong.append(f"files are left in {SHARED}: " + ", ".join(sorted(self.shared_left())))
        return wrong

    def shared_left(self):
        """Returns the files of /dev/shm that have been added since the job began and that no process uses."""
        added = shared_files() - self.shared_before
        for process in all_processes() if added else []:
            used = contents(process, "maps").decode(errors="replace") + open_files(process)
            added = {name for name in added if f"{SHARED}/{name}" not in used}
        return added

    def end(self):
        for process in self.running():
            os.kill(process, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.output.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def state_of(process):
    """Returns the letter of a process's state; X if there is none."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_alive(process):
    return state_of(process) not in "ZX"


def all_processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def contents(process, name):
    """Returns a file of /proc, empty if the process has ended or belongs to another user."""
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def open_files(process):
    names = []
    try:
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            names.append(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    except OSError:
        pass  # the process, or the descriptor, is gone
    return "\n".join(names)


def shared_files():
    """Returns the names of this user's files in /dev/shm."""
    if not os.path.isdir(SHARED):
        return set()
    with os.scandir(SHARED) as entries:
        return {entry.name for entry in entries if is_own(entry)}


def is_own(entry):
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False  # it has been removed


def longest_wait(strict):
    """Returns the seconds that a call may wait before it times out."""
    return (1.1 if strict else 2) * DEADLINE


def judge_waits(waited, victim, way, most, seconds, errors):
    """Returns what is wrong with the time-outs of the survivors, as a list of sentences.

    @param most  the seconds that a call may wait before it times out
    @param seconds  from the attack to the last error
    @param errors  the messages of the survivors' errors
    """
    wrong = []
    for rank, call, in_step in waited:
        if rank == victim:
            continue  # it was stopped meanwhile
        if in_step < 0.9 * DEADLINE:
            wrong.append(f"rank {rank} timed out after {call:.2f} s, {in_step:.2f} s after its step began: too early")
        if call > most:
            wrong.append(f"rank {rank} timed out after {call:.2f} s: later than {most:.2f} s")
    # If an asynchronous call times out while its rank is in another call, that one throws a RevokedError with the reason.
    if way != "kill" and not any("timed out after" in error for error in errors):
        wrong.append("no survivor timed out")
    if way != "kill" and seconds < 0.9 * DEADLINE:
        wrong.append(f"the survivors ended after {seconds:.2f} s: too early")
    return wrong


def attack(program, backend, ranks, way, strict, pipeline, chance):
    """Returns what went wrong, as a list of sentences, and what was done."""
    stage, victim, delay = chance.randrange(4), chance.randrange(ranks), chance.uniform(0, 0.3)
    stage = f"{stage}p" if pipeline else stage
    victim = 1 if way == "inside" else victim
    done = f"{way} rank {victim} of {ranks} at stage {stage} after {delay:.3f} s"
    job = Job(program, backend, stage, ranks, ["inside"] if way == "inside" else ["stay", ATTACKED] if backend.startswith("mpi") else [])
    try:
        if not job.wait_for(job.trains, 120):
            return [f"the training does not begin:\n{job.text()}"], done
        ids = job.ids()
        if way == "inside":
            if not job.wait_for(lambda: state_of(ids[victim]) == "T"):
                return ["rank 1 does not stop"], done
        else:
            time.sleep(delay)  # the moment of the attack
            os.kill(ids[victim], signal.SIGSTOP if way == "stop" else signal.SIGKILL)
        begin = time.monotonic()
        survivors = set(range(ranks)) - {victim}

        def ended():
            return {int(rank) for rank, _, _ in TYPED.findall(job.text())}

        wrong = []
        if not job.wait_for(lambda: survivors <= ended() or not any(is_alive(ids[rank]) for rank in survivors)):
            wrong.append(f"still waiting after {PATIENCE} s: {sorted(survivors - ended())}")
        seconds = time.monotonic() - begin
        errors = [error for rank, _, error in TYPED.findall(job.text()) if int(rank) in survivors]
        waited = [(int(rank), float(call), float(step)) for rank, call, step in WAITED.findall(job.text())]
        done += f", survivors ended after {seconds:.1f} s" + "".join(f", timed out after {call:.2f} s" for _, call, _ in waited)
        if job.paused:
            done += f", the host stood still for {job.paused:.1f} s"
        limit = DEADLINE + SLACK + job.paused
        most = longest_wait(strict) + job.paused
        if way != "kill":
            limit = most + ((2.5 if backend.startswith("mpi") else 0.5) if strict else SLACK)
        if seconds > limit:
            wrong.append(f"the survivors ended after {seconds:.1f} s, later than {limit:.1f} s")
        wrong += judge_waits(waited, victim, way, most, seconds, errors)
        if way != "kill":
            os.kill(ids[victim], signal.SIGCONT)
            survivors.add(victim)
        if backend.startswith("mpi"):
            job.wait_for(lambda: survivors <= ended())
            job.end_attack()
        wrong += job.left()
        wrong += [f"rank {rank} did not end by a typed error" for rank in sorted(survivors - ended())]
        if re.search(r"Segmentation fault|signal 11|terminate called|Aborted|ended by something else", job.text()):
            wrong.append("a crash, or an error of another type")
        if not backend.startswith("mpi"):
            job.wait_for(lambda: all(process.poll() is not None for process in job.processes))  # they may be exiting
            statuses = [process.poll() for process in job.processes]
            if statuses != [3 if rank in survivors else -signal.SIGKILL for rank in range(ranks)]:
                wrong.append(f"the processes end with {statuses}")
        if wrong:
            wrong.append(job.text())
        return wrong, done
    finally:
        job.end()


def attack_elastic(program, backend, ranks, twice, over_tcp, chance):
    """Returns what went wrong, as a list of sentences, and what was done."""
    stage = chance.randrange(4)
    victims = chance.sample(range(ranks), 2 if twice else 1)
    delays = [chance.uniform(0, 0.3), chance.uniform(0, 0.05)]
    done = f"killed {' and '.join(str(victim) for victim in victims)} of {ranks} at stage {stage} after {delays[0]:.3f} s"
    if twice:
        done += f" and {delays[1]:.3f} s"
    job = Job(program, backend, stage, ranks, ["elastic", ATTACKED], over_tcp)
    try:
        if not job.wait_for(job.trains, 120):
            return [f"the training does not begin:\n{job.text()}"], done
        ids = job.ids()
        for victim, delay in zip(victims, delays):
            time.sleep(delay)  # the moment of the attack
            if is_alive(ids[victim]):
                os.kill(ids[victim], signal.SIGKILL)
        job.end_attack()
        begin = time.monotonic()
        wrong = []
        job.wait_for(lambda: not any(is_alive(process) for process in ids.values()))
        done += f", the others ended after {time.monotonic() - begin:.1f} s"
        right = {int(rank) for rank in re.findall(r"^rank (\d+) ended right$", job.text(), re.MULTILINE)}
        lost = {int(rank) for rank in re.findall(r"^rank (\d+) ended by CheckpointError: .*are lost", job.text(), re.MULTILINE)}
        headless = {int(rank) for rank in re.findall(r"^rank (\d+) ended by ConnectError: .*rank 0 serves", job.text(), re.MULTILINE)}
        survivors = set(range(ranks)) - set(victims)
        neighbours = twice and stage > 0 and abs(victims[0] - victims[1]) in (1, ranks - 1)
        if over_tcp and 0 in victims:
            # Rank 0 may be killed after the survivors have lost the other victim's shares.
            if not survivors <= headless | (lost if neighbours else set()):
                wrong.append("the others do not say that rank 0 is lost")
            done += ", without rank 0"
        elif not survivors <= right and not (neighbours and survivors <= lost):
            wrong.append("the others do not end right")
        elif over_tcp and survivors <= right and job.processes[0].wait(PATIENCE) != 0:
            wrong.append(f"the launcher ends with status {job.processes[0].returncode}")
        done += ", with their shares lost" if survivors <= lost else ""
        if re.search(r"wrong weights|Segmentation fault|terminate called|Aborted|ended by something else", job.text()):
            wrong.append("wrong weights, a crash, or an error of another type")
        wrong += job.left()
        return wrong + ([job.text()] if wrong else []), done
    finally:
        job.end()


def attack_joining(program, backend, ranks, twice, over_tcp, chance):
    """Returns what went wrong, as a list of sentences, and what was done."""
    stage = chance.randrange(4)
    victim = chance.randrange(1 if over_tcp else 0, ranks)
    delays = [chance.uniform(0, 0.3), chance.uniform(0, 0.2), chance.uniform(0, 0.3)]
    done = f"killed {victim} of {ranks} at stage {stage} after {delays[0]:.3f} s, started another after {delays[1]:.3f} s"
    job = Job(program, backend, stage, ranks, ["join", ATTACKED, str(ranks)], over_tcp, by_hand=True)
    try:
        if not job.wait_for(job.trains, 120):
            return [f"the training does not begin:\n{job.text()}"], done
        time.sleep(delays[0])  # the moment of the attack
        killed = [job.processes[victim]]
        os.kill(killed[0].pid, signal.SIGKILL)
        time.sleep(delays[1])
        joins = job.start({"DISTX_JOIN": "1"})
        if twice:
            time.sleep(delays[2])
            done += f", killed that after {delays[2]:.3f} s, and started another"
            os.kill(joins.pid, signal.SIGKILL)
            killed.append(joins)
            job.start({"DISTX_JOIN": "1"})
        job.end_attack()
        begin = time.monotonic()
        wrong = []
        again = []  # processes that ended because a rank was lost while they joined; others are started in their place

        def all_ended():
            last = job.processes[-1]
            if last.poll() == 3 and len(again) < 3:
                again.append(last)
                job.start({"DISTX_JOIN": "1"})
            return all(process.poll() is not None for process in job.processes)

        if not job.wait_for(all_ended, 2 * PATIENCE):
            wrong.append("processes do not exit: " + ", ".join(str(process.pid) for process in job.processes if process.poll() is None))
        done += f", all ended after {time.monotonic() - begin:.1f} s"
        done += f", {len(again)} of those that joined lost a rank meanwhile" if again else ""
        if len(re.findall(r"^rank -?\d+ ended by (RankFailure|RevokedError|TimeoutError)", job.text(), re.MULTILINE)) != len(again):
            wrong.append("a process ended by another error")
        statuses = [process.poll() for process in job.processes]
        if statuses != [-signal.SIGKILL if process in killed else 3 if process in again else 0 for process in job.processes]:
            wrong.append(f"the processes end with {statuses}")
        if job.text().count(" ended right\n") != ranks:
            wrong.append(f"not {ranks} processes end right")
        wrong += job.left()
        return wrong + ([job.text()] if wrong else []), done
    finally:
        job.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=os.path.abspath)  # a host may start it in another folder
    parser.add_argument("--backend", choices=["shm", "mpi", "mpi-vendor", "gloo"], required=True)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--stops", type=int, default=1)
    parser.add_argument("--inside", type=int, default=0)
    parser.add_argument("--elastic", type=int, default=0)
    parser.add_argument("--join", type=int, default=0)
    parser.add_argument("--over-tcp", action="store_true")
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strict", action="store_true", help="no wait exceeds 1.1 deadlines: for a quiet host")
    arguments = parser.parse_args()
    if arguments.hosts:
        if reason := namespaces.reason_against():
            sys.exit(f"skipped: {reason}")
        Job.hosts = namespaces.Hosts(arguments.hosts)
    chance = random.Random(arguments.seed)
    failures = 0
    for way in ["kill"] * arguments.kills + ["stop"] * arguments.stops + ["inside"] * arguments.inside:
        wrong, done = attack(arguments.program, arguments.backend, arguments.ranks, way, arguments.strict, arguments.pipeline, chance)
        print(("wrong: " if wrong else "right: ") + done, flush=True)
        if wrong:
            failures += 1
            print("    " + "\n    ".join(wrong), flush=True)
    for number in range(arguments.elastic + arguments.join):
        twice = number % 3 == 2
        joins = number >= arguments.elastic
        wrong, done = (attack_joining if joins else attack_elastic)(
            arguments.program, arguments.backend, arguments.ranks + (1 if twice and not joins else 0), twice, arguments.over_tcp, chance)
        print(("wrong: " if wrong else "right: ") + done, flush=True)
        if wrong:
            failures += 1
            print("    " + "\n    ".join(wrong), flush=True)
    print(f"{arguments.elastic} elastic trainings, {arguments.join} that others join, {arguments.kills} kills and {arguments.stops + arguments.inside} stops, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        if Job.hosts:
            Job.hosts.close()
