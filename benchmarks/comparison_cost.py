#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cost of comparing calls over shared memory, which cannot be turned off: flight_recorder.cpp with the library's
headers and with a copy that neither computes nor publishes the fingerprint of a call, in alternating runs, without the
flight recorder. Prints the median times and the median of the ratios.

    benchmarks/comparison_cost.py [RUNS]
"""
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADER = "distx/comm/shared_memory/collective_execution.hpp"
LEFT_OUT = [
    "new (&post.fingerprint) calls::Fingerprint(fingerprint(call));",
    "workspace.history = detail::mixed(workspace.history, detail::digest_of(post.fingerprint));",
]
LINE = re.compile(r"^(\d+) rank\(s\), (\d+) B: ([\d.]+) ns a call without", re.MULTILINE)


def build(include, program):
    subprocess.run(
        ["g++", "-std=c++20", "-O2", "-pthread", f"-I{include}", ROOT / "benchmarks/flight_recorder.cpp", "-o", program],
        check=True,
    )


def times(program):
    out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {f"{ranks} rank(s), {size} B": float(time) for ranks, size, time in LINE.findall(out)}


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copytree(ROOT / "include", folder / "include")
        header = folder / "include" / HEADER
        text = header.read_text()
        for line in LEFT_OUT:
            if text.count(line) != 1:
                sys.exit(f"comparison_cost.py: {HEADER} has no single line '{line}'")
            text = text.replace(line, "")
        header.write_text(text)
        build(ROOT / "include", folder / "with")
        build(folder / "include", folder / "without")
        pairs = []
        for run in range(runs):
            order = ["with", "without"] if run % 2 == 0 else ["without", "with"]
            pairs.append({name: times(folder / name) for name in order})
    for row in pairs[0]["with"] if pairs else []:
        with_it, without = ([pair[name][row] for pair in pairs] for name in ("with", "without"))
        ratio = statistics.median(a / b for a, b in zip(with_it, without))
        print(
            f"{row}: {statistics.median(without):.1f} ns a call without the comparison, "
            f"{statistics.median(with_it):.1f} ns with it, {ratio:.3f} times as long (medians of {runs} pairs)"
        )


if __name__ == "__main__":
    main()
