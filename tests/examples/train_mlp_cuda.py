#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_mlp_cuda as a user would, and checks what it says.

    tests/examples/train_mlp_cuda.py learns|stages PROGRAM --digits FILE

learns: the accuracy on the digits held out; stages: all stages of ZeRO come to the same weights, and to the losses that
the same program has without a GPU. Without a GPU nothing is checked, and the status is 77.
"""
import argparse
import subprocess
import sys

from programs import agree, report, same_weights


def learns(program, common):
    accuracy = report([program], *common, "--ranks", "1", "--epochs", "2", "--batch-size", "64")["accuracy"]
    print(f"accuracy {accuracy:.4f}", flush=True)
    if accuracy < 0.9:
        sys.exit(f"an accuracy of {accuracy} is below 0.9")


def stages(program, common):
    for ranks in (1, 2):
        few = [*common, "--ranks", str(ranks), "--epochs", "1", "--batch-size", "64", "--hidden", "64", "--clip", "2"]
        said = {stage: report([program], *few, "--zero", str(stage)) for stage in range(4)}
        same_weights(said)
        agree(f"{ranks} ranks", report([program], *few, "--device", "cpu"), said[0], "losses")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["learns", "stages"])
    parser.add_argument("program")
    parser.add_argument("--digits", required=True)
    given = parser.parse_args()
    common = ["--digits", given.digits]
    tried = subprocess.run([given.program, *common, "--ranks", "1", "--epochs", "1", "--hidden", "1"], capture_output=True, text=True,
                           check=False)
    if tried.returncode and "there is no GPU here" in tried.stderr:
        print(f"skipped: {tried.stderr.strip()}")
        sys.exit(77)
    {"learns": learns, "stages": stages}[given.what](given.program, common)


main()
