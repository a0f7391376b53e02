#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calibrates threads, and predicts with the file: tests/benchmarks/plans.py CALIBRATE TRAIN_STEP TRAIN_GPT"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))
from programs import ROOT, refused, report  # noqa: E402

CALIBRATE, TRAIN_STEP, TRAIN_GPT = sys.argv[1:]


def gpt(layers=1, batch=2):
    return [TRAIN_GPT, "--layers", str(layers), "--width", "32", "--heads", "2", "--context", "32", "--batch", str(batch), "--sample", "0",
            "--text", os.path.join(ROOT, "docs", "reliability.md")]


GPT = gpt()


def demand(condition, *words):
    if not condition:
        sys.exit(" ".join(map(str, words)))


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    demand(done.returncode == 0, command, done.stdout, done.stderr)
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "calibration.json")
    run(CALIBRATE, "--backend", "threads", "--seconds", "1", "--max", "1MiB", "--json", file)
    with open(file, encoding="utf-8") as text:
        calibration = json.load(text)
    demand(calibration["ranks"] == 2 and calibration["shares_memory"], calibration)
    for operation, knots in calibration["calls"].items():
        for column in ("bytes", "blocking", "started", "taken"):
            values = [knot[column] for knot in knots]
            demand(values == sorted(values) and min(values) >= 0, operation, column, values)
        demand(len(knots) in ([1] if operation == "barrier" else range(2, 10)) and knots[-1]["started"] > 0, operation, knots)

    fake = ["--fake", "2", "--calibration", file]
    demand("a step takes " in run(*GPT, *fake), "train_gpt --fake --calibration prints no time")
    for stage in ("1", "3"):
        real = report([*GPT, "--backend", "threads", "--ranks", "2", "--bucket-kib", "64"], "--zero", stage, "--steps", "2")
        said = report([*GPT, *fake, "--bucket-kib", "64"], "--zero", stage)
        times = said["seconds_per_step"]
        demand(0 <= times["exposed_communication"] < times["all"], times)
        demand(said["memory"] == real["memory"][0], "stage", stage, said["memory"], "a real rank holds", real["memory"][0])
    table = run(*GPT, *fake, "--plan", "--memory-limit", "0.2", "--json", os.path.join(folder, "plan.json"))
    print(table)
    demand("over the limit" in table, "no candidate exceeds the limit")
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as text:
        candidates = json.load(text)["candidates"]
    demand({row["stage"] for row in candidates} == {0, 1, 2, 3}, candidates)
    demand([row["seconds"] for row in candidates] == sorted(row["seconds"] for row in candidates), candidates)
    demand({row["fits"] for row in candidates} == {True, False}, candidates)
    run(*gpt(layers=2), *fake, "--bucket-kib", "64", "--plan", "--plan-meshes", "--json", os.path.join(folder, "meshes.json"))
    with open(os.path.join(folder, "meshes.json"), encoding="utf-8") as text:
        candidates = json.load(text)["candidates"]
    meshes = {f"data={data},context={context},model={model}" for data, context, model in ((2, 1, 1), (1, 2, 1), (1, 1, 2))}
    demand({row["mesh"] for row in candidates} == meshes | {"pipeline=2,data=1,context=1,model=1"}, candidates)
    waits = [row["exposed_communication"] / row["seconds"] for row in candidates if row["mesh"].startswith("pipeline") and row["micro_batches"] == 2]
    demand(waits and min(waits) >= 1 / 3, "pipelines of two ranks and micro-batches wait for", waits, "of a step, not for a third or more")
    peaks = {(row["mesh"], row["recompute"]): row["peak_bytes"] for row in candidates if row["stage"] == 0}
    for mesh in meshes:
        ranks = [*gpt(2, 2 if mesh.startswith("data=2") else 4), "--backend", "threads", "--ranks", "2", "--bucket-kib", "64"]
        real = report(ranks, "--mesh", mesh, "--steps", "2")
        demand(peaks[mesh, False] == real["memory"][0]["total"]["peak"], mesh, peaks[mesh, False], "a real rank holds", real["memory"][0])
        demand(peaks[mesh, True] < peaks[mesh, False], mesh, "recomputing does not lower the peak", peaks)
    demand("a step takes " in run(TRAIN_STEP, *fake, "--width", "30", "--batch", "3"), "train_step --fake prints no time")

    # Buckets of 4 KiB, by a calibration that says so: other calls, the same bits.
    calibration["calls"]["all_reduce"] = [{"bytes": size, "blocking": time, "started": time, "taken": 0}
                                          for size, time in ((64, 1e-6), (4096, 2e-6))]
    with open(file, "w", encoding="utf-8") as text:
        json.dump(calibration, text)
    for stage in ("0", "2"):
        trained = [*GPT, "--backend", "threads", "--zero", stage, "--steps", "5"]
        usual, calibrated = report(trained), report(trained, "--calibration", file)
        calls = [sum(moved["calls"] for moved in said["traffic"].values()) for said in (usual, calibrated)]
        demand(calls[1] > calls[0], "the calibration has not changed the buckets:", calls, "calls")
        demand(usual["weights_hash"] == calibrated["weights_hash"], "buckets change the weights at stage", stage)

    refused([*GPT, "--fake", "2", "--calibration", os.path.join(folder, "absent")], "is not a calibration: it cannot be read", 1)
    refused([*GPT, *fake, "--plan", "--reproducible"], "--plan supports neither --mesh nor --reproducible", 1)
    refused([CALIBRATE, "--backend", "serial"], "one rank makes no calls", 1)
