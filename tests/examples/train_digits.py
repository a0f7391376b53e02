#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_digits as its first lines say, on one rank and two: tests/examples/train_digits.py PROGRAM DIGITS.csv.gz"""
import gzip
import os
import re
import subprocess
import sys
import tempfile

import programs

program, digits = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "digits.csv")
    with gzip.open(digits) as packed, open(path, "wb") as plain:
        plain.write(packed.read())
    for launch in [], [programs.MPIRUN, "2"]:
        done = subprocess.run([*launch, program, path], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        read = re.fullmatch(r"(\d+) of 360 held-out digits are read\n", done.stdout)
        if done.returncode or not read or not 315 <= int(read[1]) <= 340:  # writers whom it has not seen; a guess reads 36
            sys.exit(f"it ended with {done.returncode}, and did not read the digits")
    absent = subprocess.run([program, os.path.join(folder, "absent")], capture_output=True, text=True, check=False)
    if (absent.returncode, absent.stderr) != (1, "usage: train_digits DIGITS.csv\n"):
        sys.exit(f"without digits: status {absent.returncode}, {absent.stderr!r}")
