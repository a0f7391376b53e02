#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_lenet as a user would, and checks what it says.

    tests/examples/train_lenet.py learns|agrees|repeats|refuses PROGRAM [--digits FILE] [--mpi]

learns: the accuracy on the digits held out; agrees: the losses of several ranks with those of one; repeats: the same
weights from the same seed; refuses: bad input ends every rank with one sentence and status 1 or 2.
"""
import argparse
import os
import sys
import tempfile
import time

from programs import agree, refuse, report, ways


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


def repeats(how):
    for name, way in how.items():
        hashes = [report(way(ranks), "--epochs", "1")["weights_hash"] for ranks in (2, 2, 3, 3)]
        print(f"{name}: {hashes}", flush=True)
        if hashes[0] != hashes[1] or hashes[2] != hashes[3]:
            sys.exit(f"{name}: the same seed and ranks gave other weights")
        if hashes[0] == hashes[2]:
            sys.exit(f"{name}: 2 and 3 ranks gave the same weights, so the hash says nothing")


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
            (["--synthetic", "--batch-size", "100000"], "batch_size is 100000"),
            (["--synthetic", "--json", os.path.join(folder, "no", "file.json")], "cannot be written"),
            (["--synthetic", "--learning-rate", "nan"], "learning rate"),
            (["--epochs", "0"], "--epochs"),
            (["--zero", "4"], "--zero"),
            (["--backend", "smoke-signals"], "--backend"),
        ]
        refuse(program, cases, mpi)
        if sorted(os.listdir(folder)) != before:
            sys.exit(f"something was left behind: {os.listdir(folder)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["learns", "agrees", "repeats", "refuses"])
    parser.add_argument("program")
    parser.add_argument("--digits")
    parser.add_argument("--mpi", action="store_true")
    options = parser.parse_args()
    data = ["--digits", options.digits] if options.digits else ["--synthetic"]
    if options.what == "refuses":
        refuses(options.program, options.mpi)
    else:
        how = ways(options.program, ["threads"], options.mpi, data)
        {"learns": learns, "agrees": agrees, "repeats": repeats}[options.what](how)


if __name__ == "__main__":
    main()
