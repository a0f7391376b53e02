#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_mlp_cuda as a user would, and checks what it says.

    tests/examples/train_mlp_cuda.py learns|stages PROGRAM --digits FILE [--processes tools/ranks]

learns: the accuracy on the digits held out; stages: all stages of ZeRO come to the same weights, and to the losses that
the same program has without a GPU. Ranks are threads with a GPU each, or with --processes processes that share one.
Without a GPU nothing is checked, and the status is 77.
"""
import argparse
import subprocess
import sys

from programs import agree, report, same_weights


def learns(program, common, _):
    accuracy = report([program], *common, "--ranks", "1", "--epochs", "2", "--batch-size", "64")["accuracy"]
    print(f"accuracy {accuracy:.4f}", flush=True)
    if accuracy < 0.9:
        sys.exit(f"an accuracy of {accuracy} is below 0.9")


def stages(program, common, launcher):
    few = [*common, "--epochs", "1", "--batch-size", "192", "--hidden", "24", "--bucket-kib", "4", "--clip", "2"]
    for ranks in (1, 2):
        threads = ["--ranks", str(ranks)]
        command, how = [program], threads
        if launcher and ranks > 1:
            command, how = [launcher, "--one-gpu", str(ranks), program], ["--share-gpu"]
        said = {stage: report(command, *few, *how, "--zero", str(stage)) for stage in range(4)}
        same_weights(said)
        agree(f"{ranks} ranks", report([program], *few, *threads, "--device", "cpu"), said[0], "losses")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["learns", "stages"])
    parser.add_argument("program")
    parser.add_argument("--digits", required=True)
    parser.add_argument("--processes")
    given = parser.parse_args()
    common = ["--digits", given.digits]
    little = [given.program, *common, "--ranks", "1", "--epochs", "1", "--batch-size", "1000", "--hidden", "1"]
    tried = subprocess.run(little, capture_output=True, text=True, check=False)
    if tried.returncode and "no GPU" in tried.stderr:
        print(f"skipped: {tried.stderr.strip()}")
        sys.exit(77)
    {"learns": learns, "stages": stages}[given.what](given.program, common, given.processes)


main()
