# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Shared by the tests of the example programs: how they are started, and what is checked."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
MPIRUN = os.path.join(TESTS, "mpirun")
RANKS = os.path.join(ROOT, "tools", "ranks")
RUN = os.path.join(ROOT, "tools", "run")


def ways(program, mpi, common):
    """By name: what starts the program on so many ranks."""
    def started(backend, launch):
        return lambda ranks: [*launch(ranks), program, "--backend", backend, "--ranks", str(ranks), *common]

    def alone(_):
        return []

    def launched(ranks):
        return [MPIRUN, str(ranks)]

    result = {"threads": started("threads", alone), "shm": started("shm", alone)}
    if mpi:
        result |= {"shm of processes": started("shm", launched), "mpi": started("mpi", launched)}
    return result


def report(launch, *arguments):
    """What the program writes with --json."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "report.json")
        done = subprocess.run([*launch, *arguments, "--json", file], stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.exit(f"{' '.join([*launch, *arguments])}: status {done.returncode}")
        if os.listdir(folder) != ["report.json"]:
            sys.exit(f"more than the report was written: {os.listdir(folder)}")
        with open(file, encoding="utf-8") as text:
            return json.load(text)


def agree(name, alone, several, what, bound=1e-4):
    """Within the bound, relative."""
    pairs = list(zip(alone[what], several[what], strict=True))
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    print(f"{name}: {what} differ by at most {worst:.2g} relative", flush=True)
    if not worst <= bound:
        sys.exit(f"{name}: that is more than {bound:g}")


def same_weights(reports):
    """{name: report}: all have one hash."""
    hashes = {name: said["weights_hash"] for name, said in reports.items()}
    print(f"{hashes}", flush=True)
    if len(set(hashes.values())) != 1:
        sys.exit(f"the weights differ: {hashes}")


def read_bytes(*names):
    with open(os.path.join(*names), "rb") as file:
        return file.read()


def same_files(first, second):
    """A model that is loaded and saved has the same bytes."""
    for file in ("model.safetensors", "config.json"):
        if read_bytes(first, file) != read_bytes(second, file):
            sys.exit(f"the {file} of {second} is not that of {first}")


def resume(name, command):
    """A run that is killed in its midst and resumed ends as one that was not, and so does one that is complete."""
    whole = report(command)
    with tempfile.TemporaryDirectory() as folder:
        directory = os.path.join(folder, "run")
        saving = [*command, "--checkpoint", directory, "--every", "7", "--resume"]
        stop_at_checkpoint(saving, directory, signal.SIGKILL)
        stop_at_checkpoint(saving, directory, signal.SIGTERM, others=steps_in(directory))
        resumed = report(saving)
        made, steps = len(resumed["step_losses"]), len(whole["step_losses"])
        print(f"{name}: {made} of {steps} steps after it was resumed", flush=True)
        if not 0 < made < steps or whole["step_losses"][-made:] != resumed["step_losses"]:
            sys.exit(f"{name}: the resumed run did not continue where the other one was stopped")
        complete = report(saving)
        if complete["step_losses"]:
            sys.exit(f"{name}: a run that is complete made more steps")
        same_weights({"whole": whole, "resumed": resumed, "complete": complete})
        # The run that was killed may have left a save that is not published, for an hour, or one that not all stages published.
        stages = sorted(glob.glob(os.path.join(directory, "pipeline-*")))
        for each in stages or [directory]:
            if len(steps_of(each)) != 2:
                sys.exit(f"{name}: not two checkpoints are kept: {os.listdir(each)}")
        if stages:
            resume_stages(name, saving, stages, whole)


def resume_stages(name, saving, stages, whole):
    """A pipeline that ended between its stages' saves continues from the step before; one that lost more does not."""
    for stage in stages:
        *_, before, newest = steps_of(stage)
        shutil.rmtree(os.path.join(stage, newest))
        again = report(saving)
        same_weights({"whole": whole, f"without {newest} of {os.path.basename(stage)}": again})
        if len(again["step_losses"]) != int(newest[5:]) - int(before[5:]):
            sys.exit(f"{name}: {len(again['step_losses'])} steps were made after {before}")
    refused([each.replace("pipeline=2,data=2", "pipeline=1,data=4") for each in saving],
            "has checkpoints of pipeline=2, and this run has pipeline=1", 1)
    kept = {stage: sorted(os.listdir(stage)) for stage in stages}
    width = saving.index("--width") + 1
    refused([*saving[:width], "16", *saving[width + 1:]], "does not fit the training", 1)
    there, aside = (os.path.join(stages[0], newest), os.path.join(stages[0], "aside"))
    os.rename(there, aside)
    at = saving.index("--checkpoint") + 1
    report([*saving[:at], saving[at] + "2", *saving[at + 1:], "--learning-rate", "0.001"])
    os.rename(there.replace(saving[at], saving[at] + "2"), there)
    refused(saving, "are of different runs", 1)
    shutil.rmtree(there)
    os.rename(aside, there)
    if kept != {stage: sorted(os.listdir(stage)) for stage in stages}:
        sys.exit(f"{name}: a refused run has changed {kept}")
    shutil.rmtree(os.path.join(stages[0], before))
    shutil.rmtree(os.path.join(stages[-1], newest))
    refused(saving, "have no step in common", 1)
    shutil.rmtree(stages[-1])
    same_weights({"whole": whole, "from the first step": report(saving)})
    if newest + ".incomplete0" not in os.listdir(stages[0]):
        sys.exit(f"{name}: the checkpoint of one stage was lost: {os.listdir(stages[0])}")


def steps_of(directory):
    """The names of the checkpoints in a directory, the newest one last."""
    return sorted(each for each in os.listdir(directory) if re.fullmatch(r"step-\d+", each))


def steps_in(directory):
    """The names of the checkpoints in a directory, or in those of the stages of a pipeline."""
    return {path.split(os.sep)[-2] for path in glob.glob(os.path.join(directory, "**", "checkpoint.json"), recursive=True)}


def stop_at_checkpoint(command, directory, how, others=()):
    """Sends a signal to a run as soon as it has a checkpoint besides others; SIGTERM ends it with status 0."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        while steps_in(directory) <= set(others):
            if run.poll() is not None:
                sys.exit(f"{command}: status {run.returncode} before its first checkpoint")
            time.sleep(0.001)
        os.killpg(run.pid, how)
        if how == signal.SIGTERM and run.wait() != 0:
            sys.exit(f"{command}: status {run.returncode} after SIGTERM")


def held_as_planned(name, said, padding):
    """The bytes that the fullest rank holds of each kind are the formula's, but for so many of padding."""
    for kind in ("weights", "gradients", "optimizer", "offloaded"):
        held = max(ledger[kind]["held"] for ledger in said["memory"])
        planned = said["plan"][kind]
        print(f"{name}: {held} bytes of {kind}, planned {planned}", flush=True)
        if abs(held - planned) > padding:
            sys.exit(f"{name}: that differs by more than {padding}")
    for ledger in said["memory"]:
        kinds = ("weights", "gradients", "optimizer", "in_flight")
        if ledger["total"]["held"] != sum(ledger[kind]["held"] for kind in kinds):
            sys.exit(f"{name}: the kinds do not add up to the total: {ledger}")


def sent_per_step(said):
    """Bytes that a rank sends in a step, the mean."""
    sent = sum(moved["sent_bytes"] for moved in said["traffic"].values())
    return sent / said["ranks"] / len(said["step_losses"])


def refuse(program, cases, mpi):
    """Each case ends every rank with status 1 or 2, and prints one line with its words: [(arguments, words)]. Ranks whose
    lines name the rank may print one each; no line is printed twice."""
    def check(case):
        arguments, words = case
        chosen = "--backend" in arguments
        alone = [["--backend", "serial"]] + [["--backend", name, "--ranks", "2"] for name in ("threads", "shm")]
        for how in alone if not chosen else [[]]:
            refused([program, *how, *arguments], words, 1)
        if mpi:
            # Each rank says its own status, also where the launcher ends the others early.
            shell = ["sh", "-c", '"$@"; echo "status $?"', "sh"]
            how = [] if chosen else ["--backend", "mpi"]
            refused([MPIRUN, "--timeout", "60", "2", *shell, program, *how, *arguments], words, 2)

    with ThreadPoolExecutor(2) as pool:  # each mostly waits for a launcher
        for _ in pool.map(check, cases):
            pass


def refused(command, words, ranks):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120)
    statuses = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("status ")]
    if ranks == 1:
        statuses = [done.returncode]
    said = [line for line in done.stderr.splitlines() if words in line]
    print(f"{command[-4:]}: {statuses} {said[:1]}", flush=True)
    if len(statuses) != ranks or any(status not in (1, 2) for status in statuses):
        sys.exit(f"{command}: statuses {statuses}\n{done.stdout}{done.stderr}")
    lines = done.stderr.splitlines()
    if not said or len(said) != len(lines) or len(set(lines)) != len(lines) or len(lines) > ranks:
        sys.exit(f"{command}: instead of one line with {words!r}, or one per rank that names it:\n{done.stderr}")
