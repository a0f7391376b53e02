#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws the candidates of `train_gpt --plan --json PLAN`: the time of a step by the memory of a rank.

    benchmarks/plot_plan.py PLAN PICTURE

Needs matplotlib. Labels the candidates that no other one surpasses in both time and memory.
"""
import argparse
import json

KINDS = {"pipeline": "#e63946", "context": "#457b9d", "model": "#f4a261", "data": "#6a994e"}  # the first axis of several ranks


def kind_of(mesh):
    axes = dict(axis.split("=") for axis in mesh.split(",")) if mesh else {}
    return next((kind for kind in KINDS if int(axes.get(kind, 1)) > 1), "data")


def label_of(row):
    axes = [axis for axis in row["mesh"].split(",") if axis and not axis.endswith("=1")]
    words = [*axes, f"stage {row['stage']}"]
    if row["micro_batches"] > 1:
        words.append(f"{row['micro_batches']} micro-batches")
    if row["recompute"]:
        words.append("recomputed")
    return " ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("picture")
    options = parser.parse_args()
    import matplotlib  # imported only to draw

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "distx", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    with open(options.plan, encoding="utf-8") as file:
        plan = json.load(file)
    figure, axis = pyplot.subplots(figsize=(8, 5))
    for kind, colour in KINDS.items():
        rows = [row for row in plan["candidates"] if kind_of(row["mesh"]) == kind]
        axis.scatter([row["peak_bytes"] / 2**20 for row in rows], [1e3 * row["seconds"] for row in rows], 14, colour, label=kind)
    least = float("inf")
    for row in plan["candidates"]:  # the fastest first
        if row["peak_bytes"] < least:
            least = row["peak_bytes"]
            axis.annotate(label_of(row), (least / 2**20, 1e3 * row["seconds"]), xytext=(4, -9), textcoords="offset points", fontsize=6)
    axis.set_xlabel("MiB on a rank")
    axis.set_ylabel("ms a step, predicted")
    axis.set_title(f"{plan['ranks']} ranks", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    axis.grid(True, linewidth=0.4, alpha=0.6)
    figure.tight_layout()
    figure.savefig(options.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
