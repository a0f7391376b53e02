#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_lenet as a user would, and checks what it says.

    tests/examples/train_lenet.py learns|agrees|starts|repeats|counts|stages|resumes|refuses PROGRAM [--digits FILE] [--mpi]

learns: the accuracy on the digits held out; agrees: the losses of several ranks with those of one; starts: the same
weights whatever starts the ranks; repeats: the same
weights from the same seed; counts: the traffic is the formula's, and the trace shows the overlap; stages: all stages
of ZeRO, and with --reproducible all numbers of ranks, come to the same weights, hold what the formula says, and learn in bfloat16 and in micro-batches; resumes: killed in its midst and
resumed, it comes to the weights of a run that was not; refuses: bad input
ends every rank with one sentence and status 1 or 2.
"""
import argparse
import gzip
import itertools
import json
import os
import shutil
import socket
import sys
import tempfile
import time

from programs import MPIRUN, RANKS, RUN, agree, held_as_planned, refuse, report, resume, same_weights, ways


def learns(how):
    for name, way in how.items():
        begin = time.monotonic()
        accuracy = report(way(2))["accuracy"]
        print(f"{name}: accuracy {accuracy:.4f} in {time.monotonic() - begin:.0f} s", flush=True)
        if accuracy < 0.97:
            sys.exit(f"{name}: an accuracy of {accuracy} is below 0.97")


def agrees(how):
    """One epoch with global batches of 32, for the epoch and for every step."""
    alone = report(how["threads"](1), "--epochs", "1", "--batch-size", "32")
    for name, way in how.items():
        for ranks in (2, 4):
            several = report(way(ranks), "--epochs", "1", "--batch-size", str(32 // ranks))
            for what in ("losses", "step_losses"):
                agree(f"{name} on {ranks}", alone, several, what)
    program, *_, data = how["threads"](2)  # the last argument
    data = [data] if data == "--synthetic" else ["--digits", data]
    launched = report([RANKS, "2", program, *data], "--epochs", "1", "--batch-size", "16")
    agree("tools/ranks on 2", alone, launched, "step_losses")


def by_variables(variables):
    """Starts two ranks by hand: `variables` sets those of rank $rank at free port $port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return ["sh", "-c", f'port={port}; for rank in 1 0; do {variables} "$@" & done; wait', "sh"]


def starts(how, pmix):
    """One binary, unchanged: over shared memory the order of a sum does not depend on what started the ranks."""
    program, *_, data = how["shm"](2)
    training = [program, "--backend", "shm", *([data] if data == "--synthetic" else ["--digits", data]), "--epochs", "1"]
    launches = {
        "alone": how["shm"](2)[:0],
        "a folder": [RANKS, "2"],
        "tools/run": [RUN, "-n", "2"],
        "by hand": by_variables("DISTX_CONNECT=tcp://localhost:$port?rank=$rank\\&size=2"),
        "the variables of PyTorch": by_variables("RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port"),
        "the variables of Slurm": by_variables("DISTX_CONNECT=slurm:// SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_JOB_ID=$port "
                                               "SLURM_STEP_NODELIST='localhost,node[01-03,7]'"),
    }
    if "mpi" in how:
        launches["mpirun"] = [MPIRUN, "2"]
        launches["mpirun on hosts"] = [MPIRUN, "2", "-host", "localhost:2"]  # Open MPI's -H
    if pmix:
        launches["mpirun by PMIx"] = [MPIRUN, "2", "env", "DISTX_CONNECT=pmix://"]
    if shutil.which("torchrun"):
        launches["torchrun"] = ["torchrun", "--standalone", "--no-python", "--nproc-per-node", "2"]
    else:
        print("skipped: 1 test cases: there is no torchrun: pip install torch", flush=True)
    same_weights({name: report([*launch, *training], *(["--ranks", "2"] if name == "alone" else []))
                  for name, launch in launches.items()})


def repeats(how):
    for name, way in how.items():
        hashes = [report(way(ranks), "--epochs", "1")["weights_hash"] for ranks in (2, 2, 3, 3)]
        print(f"{name}: {hashes}", flush=True)
        if hashes[0] != hashes[1] or hashes[2] != hashes[3]:
            sys.exit(f"{name}: the same seed and ranks gave other weights")
        if hashes[0] == hashes[2]:
            sys.exit(f"{name}: 2 and 3 ranks gave the same weights, so the hash says nothing")


def counts(how):
    """What the decorators counted is what the algorithm moves, and the picture shows it going on beside the backward."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        for name, way in how.items():
            for ranks in (1, 2, 3):
                said = report(way(ranks), "--epochs", "1", "--trace", file)
                check_traffic(name, ranks, said)
                with open(file, encoding="utf-8") as text:
                    check_trace(name, ranks, said, json.load(text)["traceEvents"])
                plain = report(way(ranks), "--epochs", "1")
                del plain["seconds_per_step"], said["seconds_per_step"]
                if plain != said:
                    sys.exit(f"{name} on {ranks}: tracing has changed what the training did")


def check_traffic(name, ranks, said):
    """Gradients and a loss are reduced in a step; weights are broadcast before."""
    steps, weights = len(said["step_losses"]), 4 * said["parameters"]
    reduced = ranks * steps * (weights + 8) if ranks > 1 else steps * 8
    payload = {"all_reduce": reduced, "broadcast": ranks * weights if ranks > 1 else 0}
    # A ring sends (N-1)/N of the bytes twice; a broadcast brings them to the others.
    sent = {"all_reduce": 2 * (ranks - 1) * reduced // ranks, "broadcast": (ranks - 1) * weights}
    for operation, wanted in payload.items():
        when = "traffic" if operation == "all_reduce" else "traffic_at_start"
        moved = said[when].get(operation, {"payload_bytes": 0, "sent_bytes": 0, "received_bytes": 0})
        print(f"{name} on {ranks}: {operation} {moved}", flush=True)
        # The bytes that do not divide by the ranks are rounded, once a call.
        slack = moved.get("calls", 0)
        if moved["payload_bytes"] != wanted or abs(moved["sent_bytes"] - sent[operation]) > slack:
            sys.exit(f"{name} on {ranks}: {operation} should have moved {wanted} bytes and sent {sent[operation]}")
        if moved["sent_bytes"] != moved["received_bytes"]:
            sys.exit(f"{name} on {ranks}: more was sent than received, or less")


def check_trace(name, ranks, said, events):
    """Each rank's trace has all phases, and its reductions overlap the backward pass.

    Ranks that share memory reduce after it where there are no more processors than ranks.
    """
    steps = len(said["step_losses"])
    overlaps = ranks > 1 and (name == "mpi" or len(os.sched_getaffinity(0)) > ranks)
    for rank in range(ranks):
        mine = [event for event in events if event["pid"] == rank]
        for phase in ("forward", "backward", "step"):
            found = sum(event["ph"] == "X" and event["name"] == phase for event in mine)
            if found != steps:
                sys.exit(f"{name} on {ranks}: the trace has {found} times {phase!r} for {steps} steps on rank {rank}")
        passes = [(event["ts"], event["ts"] + event["dur"]) for event in mine if event["name"] == "backward"]
        starts = [event["ts"] for event in mine if event["ph"] == "b" and event["name"] == "all_reduce"]
        beside = sum(any(begin < start < end for begin, end in passes) for start in starts[:100])
        print(f"{name} on {ranks}: of {len(starts[:100])} reductions {beside} began in the backward pass", flush=True)
        if beside < 30 if overlaps else beside > 0:
            sys.exit(f"{name} on {ranks}: the reductions {'do not ' if overlaps else ''}overlap the backward pass")


def stages(how):
    """Stages 0 and 1 work in the model's own arrays, 2 and 3 lend them their weights: it must not show."""
    few = ["--epochs", "1", "--batch-size", "24", "--clip", "1", "--optimizer", "adamw"]
    said = {("threads", stage): report(how["threads"](3), *few, "--zero", str(stage)) for stage in range(4)}
    said["shm", 3] = report(how["shm"](3), *few, "--zero", "3")
    same_weights(said)
    for (name, stage), one in said.items():
        # In place, weights and gradients are the user's memory, not the training's.
        if stage >= 2:
            held_as_planned(f"stage {stage} on {name}", one, 64 * 10)
    cut = report(how["threads"](3), *few, "--zero", "3", "--accumulate", "4")
    agree("4 micro-batches", said["threads", 0], cut, "step_losses")
    few[-1] = "muon"
    same_weights({stage: report(how["threads"](3), *few, "--zero", stage) for stage in ("1", "3")})
    fixed = ["--epochs", "1", "--batch-size", "6", "--clip", "1", "--optimizer", "lamb", "--reproducible"]
    same_weights({f"{ranks} {name} at stage {stage}": report(how[name](ranks), *fixed, "--zero", stage)
                  for name, ranks, stage in [("threads", 1, "0"), ("threads", 8, "2"), ("shm", 2, "3"), ("mpi", 4, "1")]
                  if name in how})
    short = report(how["threads"](2), "--epochs", "3", "--precision", "bf16", "--zero", "3", "--accumulate", "2")
    print(f"accuracy {short['accuracy']:.4f} in bf16", flush=True)
    if short["accuracy"] < 0.9:
        sys.exit("that is below 0.9")


def resumes(how):
    few = ["--epochs", "1", "--batch-size", "16"]
    cases = [("threads", 2, []), ("threads", 3, ["--zero", "3", "--optimizer", "adamw", "--accumulate", "2"]),
             ("shm", 2, ["--zero", "2", "--precision", "bf16", "--optimizer", "muon"])]
    for name, ranks, flags in cases:
        resume(f"{name} on {ranks}", [*how[name](ranks), *few, *flags])


def refuses(program, mpi):
    with tempfile.TemporaryDirectory() as folder:
        cut = os.path.join(folder, "cut.csv")
        with open(cut, "w", encoding="utf-8") as file:
            file.write("0," * 64 + "3\n" + "0," * 20)
        wrong = os.path.join(folder, "wrong.csv")
        with open(wrong, "w", encoding="utf-8") as file:
            file.write(("0," * 64 + "3\n") * 10 + "0," * 64 + "11\n")
        few = os.path.join(folder, "few.csv")
        with open(few, "w", encoding="utf-8") as file:
            file.write(("0," * 64 + "3\n") * 2)
        before = sorted(os.listdir(folder))
        cases = [
            (["--digits", os.path.join(folder, "none.csv")], "none.csv"),
            (["--mnist", folder], "train-"),
            (["--digits", cut], "line 2"),
            (["--digits", wrong], "line 11"),
            (["--digits", few], "cannot be split"),
            (["--synthetic", "--batch-size", "100000"], "batch_size 100000 exceeds"),
            (["--synthetic", "--json", os.path.join(folder, "no", "file.json")], "cannot be written"),
            (["--synthetic", "--trace", os.path.join(folder, "no", "file.json")], "give --trace a file"),
            (["--seed", "-1"], "--seed"),
            (["--synthetic", "--learning-rate", "nan"], "learning rate"),
            (["--epochs", "0"], "--epochs"),
            (["--zero", "4"], "--zero"),
            (["--batch-size", "6", "--accumulate", "4"], "not divisible by --accumulate 4"),
            (["--reproducible", "--accumulate", "2"], "--reproducible does not support --accumulate"),
            (["--clip", "-1"], "give --clip a number above 0"),
            (["--precision", "f64"], "--precision"),
            (["--every", "5"], "--checkpoint"),
            (["--synthetic", "--checkpoint", os.path.join(folder, "few.csv"), "--epochs", "1"], "few.csv"),
            (["--backend", "smoke-signals"], "--backend"),
        ]
        refuse(program, cases, mpi)
        if sorted(os.listdir(folder)) != before:
            sys.exit(f"something was left behind: {os.listdir(folder)}")


def some_digits(file, folder):
    """A third of the digits: most checks need a few steps only."""
    path = os.path.join(folder, "digits.csv")
    with gzip.open(file, "rt", encoding="ascii") as digits, open(path, "w", encoding="ascii") as some:
        some.writelines(itertools.islice(digits, 600))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["learns", "agrees", "starts", "repeats", "counts", "stages", "resumes", "refuses"])
    parser.add_argument("program")
    parser.add_argument("--digits")
    parser.add_argument("--mpi", action="store_true")
    parser.add_argument("--pmix", action="store_true")
    options = parser.parse_args()
    if options.what == "refuses":
        refuses(options.program, options.mpi)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = ["--synthetic"]
        if options.digits:
            data = ["--digits", options.digits if options.what in ("learns", "resumes") else some_digits(options.digits, folder)]
        how = ways(options.program, options.mpi, data)
        if options.what == "repeats":
            del how["shm"]  # the threads and the processes speak for it
        checks = {"learns": learns, "agrees": agrees, "repeats": repeats, "counts": counts, "stages": stages}
        checks["starts"] = lambda how: starts(how, options.pmix)
        checks["resumes"] = resumes
        checks[options.what](how)


if __name__ == "__main__":
    main()
