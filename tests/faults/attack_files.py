#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attacks a directory of checkpoints at random, again and again, and checks what is in it afterwards.

    tests/faults/attack_files.py PROGRAM [--modes MODE…] [--runs N] [--seed N]

PROGRAM is built of saver.cpp. Each run of a mode has a new directory:

- `jobs`: two or three jobs of different sizes save the same steps, and one may be killed;
- `kills`: a job is killed while it saves, and resumed, several times;
- `links`: links are in place of folders of steps, of unpublished folders and of the directory; a link to a folder with a manifest
  refuses its step, any other is set aside;
- `foreign`: folders and files of others have the names of steps, of shards and of unpublished folders.

Every save that has reported success must be whole or have been removed for a newer one; what no save has written must be there; every
process must end by itself or by the attack. It prints "N runs, W wrong", and its status is 1 if W > 0.
"""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEP = re.compile(r"step-\d{12}")
UNPUBLISHED = re.compile(r"step-\d{12}\.[0-9a-f]{16}\.[0-9a-f]{16}\.part")
PATIENCE = 120  # seconds, on a busy host
SHARD = "shard-00001-model-00001-of-00001.safetensors"


def step_name(step):
    return f"step-{step:012d}"


class Run:
    """One attack: a folder, processes, and what was wrong."""

    def __init__(self, program, chance):
        self.program, self.chance, self.wrong, self.done = program, chance, [], ""
        self.folder = tempfile.mkdtemp(prefix="distx-attack-")
        self.directory = os.path.join(self.folder, "run")
        self.jobs, self.precious = [], {}

    def start(self, steps, keep, stale=3600, ranks=None, resume=False):
        job = len(self.jobs) + 1
        command = [self.program, "save", self.directory, str(ranks or self.chance.randint(1, 3)), str(steps), str(keep), str(stale),
                   str(job), self.chance.choice(["sync", "async"])] + (["resume"] if resume else [])
        with open(os.path.join(self.folder, f"output-{job}"), "wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.jobs.append(process)
        self.done += f" job {job}: {' '.join(command[3:])};"
        return job

    def text(self, job):
        with open(os.path.join(self.folder, f"output-{job}"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def steps(self, job, what):
        return [int(step) for step in re.findall(rf"^{what} (\d+) .*$", self.text(job), re.MULTILINE)]

    def kill(self, job, saved, delay):
        """Kills a job some seconds after it has saved a number of times."""
        process, end = self.jobs[job - 1], time.monotonic() + PATIENCE
        while len(self.steps(job, "saved")) < saved and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(delay)  # the moment of the attack
        process.kill()
        self.done += f" killed {job} after {saved} saves and {delay:.4f} s;"

    def wait(self, job, killed=False):
        process = self.jobs[job - 1]
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.wrong.append(f"job {job} does not end")
            return
        if status not in ([0, -signal.SIGKILL] if killed else [0]):
            self.wrong.append(f"job {job} ends with {status}")
        if re.search(r"^wrong", self.text(job), re.MULTILINE):
            self.wrong.append(f"job {job} has resumed with wrong weights")

    def names(self):
        return sorted(os.listdir(self.directory))

    def published(self):
        """The steps of the folders that saves have published, without links."""
        return {int(name[5:]) for name in self.names() if STEP.fullmatch(name)
                and not os.path.islink(os.path.join(self.directory, name))
                and os.path.exists(os.path.join(self.directory, name, "checkpoint.json"))}

    def check(self, steps):
        """Loads the checkpoints of these steps."""
        for step in sorted(steps):
            path = os.path.join(self.directory, step_name(step))
            done = subprocess.run([self.program, "check", path], capture_output=True, text=True, timeout=PATIENCE, check=False)
            if done.stdout != f"loaded {step}\n":
                self.wrong.append(f"step {step} does not load: {done.stdout}{done.stderr}")

    def put(self, *path):
        """Makes a file that no save may change."""
        path = os.path.join(self.folder, *path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        content = f"precious {len(self.precious)} {self.chance.random()}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        self.precious[path] = content

    def check_precious(self, moved=False):
        """Looks for the files that no save may change: `moved`, also under other names."""
        for path, content in self.precious.items():
            paths = [path]
            if moved:
                paths += [os.path.join(folder, name) for folder, _, names in os.walk(self.folder) for name in names
                          if name == os.path.basename(path) and ".replaced" in folder]
            if not any(os.path.exists(each) and content == open(each, encoding="utf-8", errors="replace").read() for each in paths):
                self.wrong.append(f"{path} is gone or changed")

    def end(self):
        for process in self.jobs:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder)


def jobs(run):
    chance = run.chance
    steps, keep = chance.randint(4, 10), chance.choice([0, 0, 1, 2])
    count = chance.choice([2, 2, 3])
    for _ in range(count):
        run.start(steps, keep)
    killed = chance.randint(1, count) if chance.random() < 0.4 else 0
    if killed:
        run.kill(killed, chance.randint(0, steps - 1), chance.uniform(0, 0.03))
    for job in range(1, count + 1):
        run.wait(job, job == killed)
    saved = [step for job in range(1, count + 1) for step in run.steps(job, "saved")]
    published = run.published()
    run.check(published)
    if saved and max(saved) not in published:
        run.wrong.append(f"step {max(saved)} was saved and is gone")
    if keep == 0 and (len(saved) != len(set(saved)) or not set(saved) <= published):
        run.wrong.append(f"saved were {sorted(saved)}, and there are {sorted(published)}")
    if max(published, default=0) != steps:
        run.wrong.append(f"the last step was not saved, only {sorted(published)}")
    others = [name for name in run.names() if not STEP.fullmatch(name)]
    if others and not (killed and all(map(UNPUBLISHED.fullmatch, others))):
        run.wrong.append(f"left are {others}")


def kills(run):
    chance = run.chance
    last = 0
    for _ in range(3):
        job = run.start(1000, 2, resume=True)
        run.kill(job, chance.randint(0, 4), chance.uniform(0, 0.03))
        run.wait(job, killed=True)
        resumed = run.steps(job, "resumed")
        if resumed and resumed[0] < last:
            run.wrong.append(f"job {job} has resumed step {resumed[0]}, and {last} was saved")
        last = max([last, *run.steps(job, "saved")])
        if os.path.isdir(run.directory):
            run.check(run.published())
            if last and max(run.published(), default=0) < last:
                run.wrong.append(f"step {last} was saved and is gone")
    job = run.start(2, 2, stale=0, resume=True)
    run.wait(job)
    if run.steps(job, "refused"):
        run.wrong.append("the last job cannot save")
    run.check(run.published())
    if len(run.names()) != 2:
        run.wrong.append(f"left are {run.names()}")


def links(run):
    chance = run.chance
    if chance.random() < 0.5:
        os.makedirs(os.path.join(run.folder, "disk"))
        os.symlink("disk", run.directory)
    else:
        os.makedirs(run.directory)
    steps = chance.randint(3, 8)
    linked = chance.sample(range(1, steps), chance.randint(1, 2))
    refused = []  # those of a folder with a manifest
    for step in linked:
        target = os.path.join(run.folder, f"target-{step}")
        if chance.random() < 0.7:
            for name in (SHARD, "model.safetensors", "checkpoint.json.part"):
                run.put(target, name)
            if chance.random() < 0.5:
                run.put(target, "checkpoint.json")
                refused.append(step)
        os.symlink(target, os.path.join(run.directory, step_name(step)))
    target = os.path.join(run.folder, "target")
    run.put(target, SHARD)
    unpublished = f"{step_name(1)}.{'0' * 16}.{'1' * 16}.part"
    os.symlink(target, os.path.join(run.directory, unpublished))
    keep = chance.choice([0, 1, 2])
    run.wait(run.start(steps, keep, stale=0))
    if sorted(run.steps(1, "refused")) != sorted(refused):
        run.wrong.append(f"refused are {run.steps(1, 'refused')} instead of {refused}")
    saved = sorted(run.steps(1, "saved"))
    expected = set(saved[-keep:] if keep else saved)
    if run.published() != expected:
        run.wrong.append(f"there are {run.published()} instead of {expected}")
    run.check(expected)
    run.check_precious()
    links_left = {os.readlink(os.path.join(run.directory, name)): name for name in run.names()
                  if os.path.islink(os.path.join(run.directory, name))}
    for step in linked:
        name = links_left.get(os.path.join(run.folder, f"target-{step}"), "")
        if name != step_name(step) and (step in refused or not re.fullmatch(step_name(step) + r"\.[0-9a-f]{16}\.replaced", name)):
            run.wrong.append(f"the link of step {step} is gone, or has the name '{name}'")
    if links_left.get(target) != unpublished:
        run.wrong.append(f"the link {unpublished} is gone")


def foreign(run):
    chance = run.chance
    steps = chance.randint(3, 8)
    for step in chance.sample(range(1, steps + 3), 3):
        for name in chance.sample([SHARD, "model.safetensors", "notes.txt", "shard-1.safetensors", "checkpoint.json.part",
                                   os.path.join("inner", SHARD)], chance.randint(1, 4)):
            if name != "checkpoint.json.part" or step > steps:
                run.put("run", step_name(step), name)
    run.put("run", step_name(1) + ".txt")
    run.put("run", "step-7", "checkpoint.json")
    run.put("run", "other.0000000000000000.1111111111111111.part", SHARD)
    run.put("run", f"{step_name(2)}.{'0' * 16}.part", SHARD)
    run.put("run", f"{step_name(2)}.{'0' * 16}.{'1' * 16}.part", SHARD)  # a save in progress of another job
    os.mkfifo(os.path.join(run.directory, f"{step_name(3)}.{'2' * 16}.{'3' * 16}.part"))
    keep = chance.choice([0, 1, 2])
    run.wait(run.start(steps, keep))
    if run.steps(1, "refused") or len(run.steps(1, "saved")) != steps:
        run.wrong.append("a step was not saved")
    expected = set(range(1 if keep == 0 else steps - keep + 1, steps + 1))
    if run.published() != expected:
        run.wrong.append(f"there are {run.published()} instead of {expected}")
    run.check(expected)
    run.check_precious(moved=True)


MODES = {"jobs": jobs, "kills": kills, "links": links, "foreign": foreign}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--runs", type=int, default=3, help="of each mode")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    failures = 0
    for mode in arguments.modes:
        for _ in range(arguments.runs):
            run = Run(os.path.abspath(arguments.program), chance)
            try:
                MODES[mode](run)
                print(("wrong: " if run.wrong else "right: ") + mode + run.done, flush=True)
                if run.wrong:
                    failures += 1
                    print("    " + "\n    ".join(run.wrong + [run.text(job + 1) for job in range(len(run.jobs))]), flush=True)
            finally:
                run.end()
    print(f"{len(arguments.modes) * arguments.runs} runs, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
