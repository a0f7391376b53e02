#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws the picture of docs/benchmarks.md from the tables of the pages on benchmarks: distx and every peer, worst and best row.

    benchmarks/plot_overview.py [--pages docs/benchmarks*.md] [--out docs/pictures]
"""
import argparse
import glob
import os
import re

import plot_training

PEERS = {"Open MPI": "#023e8a", "Open MPI, segmented ring": "#0096c7", "Boost.MPI": "#7b2cbf", "Gloo": "#b08968"}
KINDS = ("collectives", "training", "optimizer", "checkpoint")  # from the top


def tables(page):
    """Yields the bold title before a table, the heading of its section, its columns, and its rows as dictionaries."""
    section = title = ""
    columns = rows = None
    for line in page.splitlines() + [""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if columns is None:
                columns, rows = cells, []
            elif not re.fullmatch(r"[-:| ]+", line):
                rows.append(dict(zip(columns, cells)))
            continue
        if columns is not None:
            yield title, section, columns, rows
            title, columns = "", None
        if line.startswith("#"):
            section = line.lstrip("# ")
        if line.startswith("**distx"):
            title = line.strip("*")


def ratios(page):
    """Returns (what, peer) to a list of (time of the peer over that of distx, which row)."""
    found = {}

    def add(what, peer, ratio, row):
        found.setdefault((what, peer), []).append((ratio, row))

    for title, section, columns, rows in tables(page):
        words = re.match(r"distx \w+: (\w+), (\w+) memory, (\d) ranks", title)
        if words:
            operation, memory, ranks = words.groups()
            for row in rows:
                for peer in PEERS:
                    if row.get(peer):
                        name = operation + " " + row["size"] + (f", {ranks} ranks" if ranks != "2" else "")
                        add(f"collectives, {memory} memory", peer, float(row[peer]), name)
        elif "exposed communication" in columns:
            ours = [row for row in rows if row[""].startswith("distx")]
            for row in rows:
                for mine in ours if row not in ours else []:
                    ratio = float(row["step, ms"]) / float(mine["step, ms"])
                    add("training step", "PyTorch DDP", ratio, mine[""].removeprefix("distx ") + " " + mine["buckets of"])
        elif "kernel" in columns and "GB/s" in columns:
            mine = {row["parameters"]: float(row["ms"]) for row in rows if row["kernel"] == "distx AdamW"}
            for row in rows:
                if row["kernel"].startswith("PyTorch"):
                    add("optimizer update", row["kernel"], float(row["ms"]) / mine[row["parameters"]], row["parameters"])
        elif section == "Checkpoints":
            for row in rows:
                if "until it returns" not in row[""]:
                    call, where = re.match(r"(`\w+`)(.*)", row[""]).groups()
                    peer = row["against"].split(" of ")[0].replace("`", "")
                    add(f"checkpoint {call}".replace("`", ""), peer, float(row["ratio"]), where.lstrip(", "))
    return found


def draw(found, folder):
    figure, axes = plot_training.pyplot().subplots(figsize=(9.5, 0.42 * len(found) + 1.3))
    for place, ((_, peer), rows) in enumerate(found.items()):
        worst, best = min(rows), max(rows)
        colour = PEERS.get(peer, plot_training.PYTORCH if "PyTorch" in peer else "#6c757d")
        axes.plot([worst[0], best[0]], [place, place], "|-", color=colour, linewidth=5, markersize=11, alpha=0.85,
                  solid_capstyle="butt")
        for (ratio, row), side in ((worst, "right"), (best, "left"))[: 1 if worst == best else 2]:
            text = f"{ratio:.2f} {row}" if ratio < 100 else f"{ratio:.0f} {row}"
            axes.annotate(text.strip(), (ratio, place), (-6 if side == "right" else 6, 0), textcoords="offset points",
                          ha=side, va="center", fontsize=6.5)
    axes.axvline(1, color="#212529", linewidth=1)
    axes.set_xscale("log")
    low = min(min(rows)[0] for rows in found.values())
    high = max(max(rows)[0] for rows in found.values())
    axes.set_xlim(low / 16, high * 40)
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 100, 1000, 10000) if low / 2 < tick < high * 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(found)), [f"{what}: {peer}" for what, peer in found], fontsize=8)
    axes.invert_yaxis()
    axes.grid(True, axis="x", linewidth=0.4, alpha=0.6)
    axes.set_xlabel("time of the peer / time of distx, worst and best row of the tables (right of 1: distx is faster)")
    plot_training.save(figure, folder, "overview")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", nargs="+", default=sorted(glob.glob(os.path.join(here, "..", "docs", "benchmarks*.md"))))
    parser.add_argument("--out", default=os.path.join(here, "..", "docs", "pictures"), help="the folder for the picture")
    options = parser.parse_args()
    text = ""
    for path in options.pages:
        with open(path, encoding="utf-8") as file:
            text += file.read() + "\n"
    found = ratios(text)
    draw({key: found[key] for key in sorted(found, key=lambda key: KINDS.index(key[0].split(",")[0].split()[0]))}, options.out)


if __name__ == "__main__":
    main()
