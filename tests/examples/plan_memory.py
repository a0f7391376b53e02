#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs plan_memory as a user would: tests/examples/plan_memory.py PROGRAM"""
import json
import subprocess
import sys


def run(*arguments):
    return subprocess.run([sys.argv[1], *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: found {found}, expected {expected}")


plan = json.loads(run("--parameters", "7.5e9", "--ranks", "64", "--precision", "mixed", "--json").stdout)
psi = 7_500_000_000
held = [[stage[kind] for kind in ("stage", "weights", "gradients", "optimizer", "total")] for stage in plan["stages"]]
expect("mixed on 64", held, [
    [0, 2 * psi, 2 * psi, 12 * psi, 16 * psi],
    [1, 2 * psi, 2 * psi, 12 * psi // 64, 4 * psi + 12 * psi // 64],
    [2, 2 * psi, 2 * psi // 64, 12 * psi // 64, 2 * psi + 14 * psi // 64],
    [3, 2 * psi // 64, 2 * psi // 64, 12 * psi // 64, 16 * psi // 64],
])
plain = json.loads(run("--parameters", "1000", "--ranks", "4", "--json").stdout)
expect("f32 on 4", [stage["total"] for stage in plain["stages"]], [16000, 10000, 7000, 4000])
expect("f32 on 4, sent", [stage["sent"] for stage in plain["stages"]], [6000, 6000, 6000, 9000])
shared = json.loads(run("--parameters", "1000", "--ranks", "4", "--share-memory", "--json").stdout)
expect("sent with shared memory", [stage["sent"] for stage in shared["stages"]], [6000, 6000, 6000, 3000])
offload = json.loads(run("--parameters", "1000", "--ranks", "4", "--offload", "--json").stdout)
expect("offloaded", [[stage["optimizer"], stage["offloaded"], stage["total"]] for stage in offload["stages"]],
       [[0, 8000, 8000], [0, 2000, 8000], [0, 2000, 5000], [0, 2000, 2000]])
words = run("--parameters", "7.5e9", "--ranks", "64", "--precision", "mixed", "--offload").stdout.split()
expect("the offloaded table", ("optimizer" in words, "offloaded" in words, words.count("90.00"), words.count("1.41")), (False, True, 1, 3))
table = run("--parameters", "7.5e9", "--ranks", "64", "--precision", "mixed")
expect("the table's status", table.returncode, 0)
for figure in ("120.0 GB", "31.41 GB", "16.64 GB", "1.88 GB"):
    expect(f"{figure} in the table", figure in table.stdout, True)

good = {"--parameters": "7.5e9", "--ranks": "64", "--precision": "mixed"}
for flag, values in {
    "--parameters": ["-1", "0", "nan", "inf", "1.5", "many", "1e30", ""],
    "--ranks": ["0", "-2", "1.5", "nan", "several", "99999999999999999999"],
    "--precision": ["f8", ""],
}.items():
    for value in values:
        bad = run(*(word for name, usual in good.items() for word in (name, value if name == flag else usual)))
        if bad.returncode != 2 or bad.stdout or bad.stderr.count("\n") != 1 or not bad.stderr.startswith("plan_memory: "):
            sys.exit(f"{flag} '{value}': status {bad.returncode}, {bad.stdout!r}, {bad.stderr!r}")
        print(bad.stderr, end="")
missing = run("--ranks", "4")
expect("without --parameters", (missing.returncode, "--parameters" in missing.stderr), (2, True))
