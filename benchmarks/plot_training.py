# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pictures and tables of trainings, for benchmarks/plot: steps, memory, and the optimizer's update."""
import os
import statistics

DISTX, PYTORCH = "#c1121f", "#ee9b00"
PARTS = {"compute": ("#457b9d", "computation"), "update": ("#a8dadc", "update"),
         "exposed": ("#e63946", "exposed communication")}


def pyplot():
    import matplotlib  # imported only to draw

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "distx", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as module

    return module


def save(figure, folder, name):
    path = os.path.join(folder, name + ".svg")
    os.makedirs(folder, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot().close(figure)
    print(path)


# ---- Steps: several reports of `train_step --json` and `ddp.py --json` ----


def bucket_text(size):
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size / 2**10:g} KiB"


def step_rows(reports):
    """One row for each program, way of communicating and bucket size; the rounds of all turns together.

    Of PyTorch only the fastest of its bucket sizes, bound to cores or not.
    """
    turns = {}
    for report in reports:
        if len(report["modes"]) < 2 or "wire" in report:
            continue
        for mode in report["modes"]:
            if mode["name"] != "alone":
                bucket = mode.get("bucket_bytes") or report["bucket_bytes"]
                key = (report["backend"], mode["name"], bucket, report.get("bound", True),
                       report.get("share_weights", False), report.get("zero", 0))
                turns.setdefault(key, []).append((report, mode))
    rows = []
    for (backend, name, bucket, bound, shares, stage), found in turns.items():
        alone = [next(each for each in report["modes"] if each["name"] == "alone") for report, _ in found]
        seconds = statistics.median(value for _, mode in found for value in mode["rounds"])
        exposed = statistics.median(a - b for (_, mode), each in zip(found, alone)
                                    for a, b in zip(mode["rounds"], each["rounds"]))
        way = "blocking" if name == "blocking" else "overlap"
        version, plus, _ = backend.partition("+")  # 2.1+cpu says how it was built
        peer = (version if plus else version.replace(", gloo", "")) + " DDP on Gloo" + ("" if bound else ", not bound")
        distx = f"distx {backend}, stage {stage}" + (", shared weights" if shares else "")
        rows.append({"program": peer if "PyTorch" in backend else distx, "way": way, "bytes": bucket,
                     "bucket": bucket_text(bucket), "kind": (stage, shares), "seconds": seconds, "exposed": exposed,
                     "compute": statistics.median(mode["compute"] for _, mode in found),
                     "update": statistics.median(mode["update"] for _, mode in found)})
    peers = [row for row in rows if "PyTorch" in row["program"]]
    rows = [row for row in rows if row not in peers] + sorted(peers, key=lambda row: row["seconds"])[:1]
    return sorted(rows, key=lambda row: ("PyTorch" in row["program"], row["kind"], -row["bytes"],
                                         row["way"] == "blocking"))


def steps_table(reports):
    rows = step_rows(reports)
    if not rows:
        return []
    lines = ["| | buckets of | step, ms | computation | update | exposed communication | of the step |",
             "|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        times = " | ".join(f"{1e3 * row[part]:.2f}" for part in ("seconds", "compute", "update", "exposed"))
        lines.append(f"| {row['program']}, {row['way']} | {row['bucket']} | {times} | "
                     f"{100 * row['exposed'] / row['seconds']:.1f}% |")
    return lines + [""]


def draw_steps(reports, title, folder):
    rows = step_rows(reports)
    if not rows:
        return
    figure, axes = pyplot().subplots(figsize=(9, 0.5 * len(rows) + 1.4))
    places = range(len(rows))
    left = [0.0] * len(rows)
    for part, (colour, label) in PARTS.items():
        widths = [1e3 * max(row[part], 0) for row in rows]
        axes.barh(places, widths, left=left, color=colour, label=label, height=0.62)
        left = [a + b for a, b in zip(left, widths)]
    for place, row in zip(places, rows):
        axes.text(left[place], place, f" {100 * row['exposed'] / row['seconds']:.1f}% exposed", va="center", fontsize=8)
    axes.set_yticks(list(places), [f"{row['program']}, {row['way']},\nbuckets of {row['bucket']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(left))
    axes.set_xlabel("ms per step")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    axes.set_title("784-1024-1024-10, 64 samples per rank, two ranks" + (f"\n{title}" if title else ""), fontsize=10)
    save(figure, folder, "train_step")


# ---- An emulated wire ----


def wire_table(reports):
    lines = ["| hidden layers | samples per rank | buckets | computation, ms | communication | in the last bucket | "
             "step without overlap | with overlap | can be hidden | is hidden | share |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for report in reports:
        hidden = report.get("hidden")
        if not hidden:
            continue
        modes = {mode["name"]: mode for mode in report["modes"]}
        times = " | ".join(f"{1e3 * value:.2f}" for value in (
            modes["alone"]["compute"], hidden["communication"], hidden["last_bucket"], modes["blocking"]["seconds"],
            modes["overlap"]["seconds"], hidden["can_be_hidden"], hidden["is_hidden"]))
        lines.append(f"| {len(report['widths']) - 2} | {report['batch']} | {report['buckets']} | {times} | "
                     f"{100 * hidden['share']:.1f}% |")
    return lines + [""] if len(lines) > 2 else []


# ---- Memory: one report for each stage and number of ranks ----


def memory_reports(reports):
    return sorted((report for report in reports if len(report["modes"]) == 1),
                  key=lambda report: (report["ranks"], report["zero"]))


def memory_table(reports):
    found = memory_reports(reports)
    if not found:
        return []
    lines = ["| ranks | stage | weights, MB | gradients | optimizer | in flight | total, by the statistics | "
             "largest process |", "|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for report in found:
        ledger = report["ledger"]
        cells = [ledger[kind] for kind in ("weights", "gradients", "optimizer", "in_flight", "total")]
        cells.append(max(report["process_peak_bytes"]))
        lines.append(f"| {report['ranks']} | {report['zero']} | " + " | ".join(f"{1e-6 * c:.0f}" for c in cells) + " |")
    return lines + [""]


def draw_memory(reports, title, folder):
    found = memory_reports(reports)
    if not found:
        return
    figure, axes = pyplot().subplots(figsize=(8, 3.8))
    places = [0.8 * i + 0.7 * (found[i]["ranks"] != found[0]["ranks"]) for i in range(len(found))]
    bottom = [0.0] * len(found)
    for kind, colour in (("weights", "#457b9d"), ("gradients", "#e9c46a"), ("optimizer", "#2a9d8f"),
                         ("in_flight", "#e76f51")):
        heights = [1e-6 * report["ledger"][kind] for report in found]
        axes.bar(places, heights, 0.55, bottom=bottom, color=colour, label=kind.replace("_", " "))
        bottom = [a + b for a, b in zip(bottom, heights)]
    axes.plot(places, [1e-6 * max(report["process_peak_bytes"]) for report in found], "k_", markersize=22,
              label="peak of the process")
    axes.set_xticks(places, [f"stage {report['zero']}\n{report['ranks']} ranks" for report in found], fontsize=8)
    axes.set_ylabel("peak MB of a rank")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"{1e-6 * found[0]['parameters']:.0f} million parameters, AdamW{': ' + title if title else ''}",
                   fontsize=10)
    save(figure, folder, "training_memory")


# ---- The optimizer's update ----


def optimizer_groups(rows):
    """Rows of 28 bytes by the number of parameters, PyTorch's last."""
    rows = sorted((row for row in rows if row["bytes_per_element"] == 28), key=lambda row: "PyTorch" in row["name"])
    sizes = sorted({row["elements"] for row in rows})
    return {size: [row for row in rows if row["elements"] == size] for size in sizes}


def optimizer_table(rows):
    lines = ["| parameters | kernel | ms | GB/s | ratio to the faster loop |",
             "|---:|---|---:|---:|---:|"]
    for size, found in optimizer_groups(rows).items():
        mover = min(row["seconds"] for row in found if row["name"].startswith("move"))
        for row in found:
            name = "distx AdamW" if row["name"] == "AdamW" else row["name"]
            lines.append(f"| {size / 2**20:g} Mi | {name} | {1e3 * row['seconds']:.2f} | "
                         f"{28e-9 * size / row['seconds']:.1f} | {row['seconds'] / mover:.2f} |")
    return lines + [""] if rows else []


def draw_optimizer(rows, title, folder):
    groups = optimizer_groups(rows)
    if not groups:
        return
    figure, all_axes = pyplot().subplots(1, len(groups), figsize=(5 * len(groups), 2.8), squeeze=False)
    for axes, (size, found) in zip(all_axes[0], groups.items()):
        colours = [DISTX if row["name"] == "AdamW" else PYTORCH if "PyTorch" in row["name"] else "#adb5bd"
                   for row in found]
        names = ["distx AdamW" if row["name"] == "AdamW" else row["name"] for row in found]
        axes.barh(range(len(found)), [1e3 * row["seconds"] for row in found], color=colours, height=0.62)
        axes.set_yticks(range(len(found)), names, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(f"ms for {size / 2**20:g} Mi parameters")
    figure.suptitle(f"One update, float32, one core{': ' + title if title else ''}", fontsize=10)
    save(figure, folder, "optimizer")


def draw(reports, rows, title, folder):
    draw_steps(reports, title, folder)
    draw_memory(reports, title, folder)
    draw_optimizer(rows, title, folder)


def tables(reports, rows):
    """By the name of their place in the page."""
    return {"steps": steps_table(reports), "wire": wire_table(reports), "memory": memory_table(reports),
            "optimizer": optimizer_table(rows)}
