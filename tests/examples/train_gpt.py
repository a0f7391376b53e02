#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_gpt as a user would, and checks what it says.

    tests/examples/train_gpt.py learns|agrees|repeats|refuses PROGRAM [--mpi]

learns: the loss on held-out text, and what the report has; agrees: the losses of several ranks with those of one;
repeats: the same weights from the same seed; refuses: bad input ends every rank with one sentence and status 1 or 2.
"""
import argparse
import os
import sys
import tempfile
import time

from programs import agree, refuse, report, ways

TINY = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32"]


def learns(how):
    """The first guess, all characters equally likely, is off by ln 100 = 4.6."""
    for name, way in how.items():
        begin = time.monotonic()
        said = report(way(2), "--steps", "1000", "--batch", "8", "--sample", "50")
        losses = said["step_losses"]
        print(f"{name}: from {losses[0]:.3f} to {said['held_out_loss']:.4f} on text that was held out, "
              f"in {time.monotonic() - begin:.0f} s", flush=True)
        if len(losses) != 1000 or not 4 < losses[0] < 5.5:
            sys.exit(f"{name}: {len(losses)} losses, the first is {losses[0]}")
        if not said["held_out_loss"] < 2.5:
            sys.exit(f"{name}: that is not below 2.5")
        if len(said["sample"]) < 10:
            sys.exit(f"{name}: the sample is {said['sample']!r}")
        times = said["seconds_per_step"]
        if set(times) != {"compute", "exposed_communication", "update"} or min(times.values()) <= 0:
            sys.exit(f"{name}: the times of a step are {times}")
        if said["traffic"]["all_reduce"]["sent_bytes"] <= 0:
            sys.exit(f"{name}: the traffic is {said['traffic']}")


def agrees(how):
    """Global batches of 8 sequences."""
    alone = report(how["threads"](1), "--steps", "50", "--batch", "8", "--sample", "0")
    cut = report(how["threads"](1), "--steps", "50", "--batch", "8", "--accumulate", "4", "--sample", "0")
    agree("4 micro-batches", alone, cut, "step_losses")
    for name, way in how.items():
        for ranks in (2, 4):
            several = report(way(ranks), "--steps", "50", "--batch", str(8 // ranks), "--sample", "0")
            agree(f"{name} on {ranks}", alone, several, "step_losses")
            agree(f"{name} on {ranks}", {"held out": [alone["held_out_loss"]]},
                  {"held out": [several["held_out_loss"]]}, "held out")


def repeats(how):
    for name, way in how.items():
        hashes = [report(way(ranks), "--steps", "20", "--sample", "0")["weights_hash"] for ranks in (2, 2, 3, 3)]
        print(f"{name}: {hashes}", flush=True)
        if hashes[0] != hashes[1] or hashes[2] != hashes[3]:
            sys.exit(f"{name}: the same seed and ranks gave other weights")
        if hashes[0] == hashes[2]:
            sys.exit(f"{name}: 2 and 3 ranks gave the same weights, so the hash says nothing")


def refuses(program, mpi):
    with tempfile.TemporaryDirectory() as folder:
        empty = os.path.join(folder, "empty.txt")
        short = os.path.join(folder, "short.txt")
        for path, text in ((empty, ""), (short, "short " * 20)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        before = sorted(os.listdir(folder))
        few = [*TINY, "--steps", "3", "--sample", "0"]
        refuse(program, [
            (["--text", os.path.join(folder, "none.txt")], "none.txt cannot be opened"),
            (["--text", folder], "cannot be opened (Is a directory)"),
            (["--text", empty], "there is no text"),
            (["--text", short], "must be longer than a context of"),
            (["--width", "64", "--heads", "5"], "cannot be shared by 5 heads"),
            (["--batch", "3", "--accumulate", "2"], "cannot be cut into 2"),
            (["--batch", "1000000"], "batch_size is 1000000"),
            ([*few, "--learning-rate", "nan"], "learning rate"),
            ([*few, "--learning-rate", "1e30"], "choose a lower --learning-rate"),
            (["--json", os.path.join(folder, "no", "file.json")], "cannot be written"),
            (["--steps", "0"], "--steps"),
            (["--zero", "4"], "--zero"),
            (["--backend", "smoke-signals"], "--backend"),
        ], mpi)
        if sorted(os.listdir(folder)) != before:
            sys.exit(f"something was left behind: {os.listdir(folder)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["learns", "agrees", "repeats", "refuses"])
    parser.add_argument("program")
    parser.add_argument("--mpi", action="store_true")
    options = parser.parse_args()
    if options.what == "refuses":
        refuses(options.program, options.mpi)
    else:
        how = ways(options.program, options.mpi, TINY)
        {"learns": learns, "agrees": agrees, "repeats": repeats}[options.what](how)


if __name__ == "__main__":
    main()
