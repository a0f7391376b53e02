#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_gpt as a user would, and checks what it says.

    tests/examples/train_gpt.py learns|agrees|repeats|stages|splits|pipelines|costs|fakes|precision|compresses|resumes|models|refuses PROGRAM [--mpi]

learns: the loss on held-out text, and what the report has; agrees: the losses of several ranks with those of one;
repeats: the same weights from the same seed; stages: all stages of ZeRO come to the same weights; splits: on a
mesh, with the weights split, the losses are those of one process; pipelines: so are those of pipelines, and the weights
where none is tied; costs: what each stage holds and sends is the
formula's; fakes: a fake rank holds and sends what the same rank of a real job does; precision: bfloat16 learns; compresses: gradients
in fewer bytes come to nearly the same loss; resumes: killed in its midst and resumed, it
comes to the weights of a run that was not; models: a model that is saved is loaded on any ranks at any stage;
refuses: bad input ends every rank with status 1 or 2 and one line that says why.
"""
import argparse
import array
import functools
import os
import sys
import tempfile
import time

from programs import ROOT, agree, held_as_planned, read_bytes, refuse, refused, report, resume, same_files, same_weights, sent_per_step, ways

TINY = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32"]
# Every run evaluates the held-out tenth of its text, which of the default text takes longer than a few steps do.
SHORT = ["--text", os.path.join(ROOT, "docs", "reliability.md")]


def learns(how):
    """The first guess, all characters equally likely, is off by ln 100 = 4.6."""
    for name, way in how.items():
        begin = time.monotonic()
        said = report(way(2), "--steps", "1000", "--batch", "8", "--sample", "50")
        losses = said["step_losses"]
        print(f"{name}: from {losses[0]:.3f} to {said['held_out_loss']:.4f} on text that was held out, "
              f"in {time.monotonic() - begin:.0f} s", flush=True)
        if len(losses) != 1000 or not 4 < losses[0] < 5.5:
            sys.exit(f"{name}: {len(losses)} losses, the first is {losses[0]}")
        if not said["held_out_loss"] < 2.5:
            sys.exit(f"{name}: that is not below 2.5")
        if len(said["sample"]) < 10:
            sys.exit(f"{name}: the sample is {said['sample']!r}")
        times = said["seconds_per_step"]
        if set(times) != {"compute", "exposed_communication", "update"} or min(times.values()) <= 0:
            sys.exit(f"{name}: the times of a step are {times}")
        if said["traffic"]["all_reduce"]["sent_bytes"] <= 0:
            sys.exit(f"{name}: the traffic is {said['traffic']}")


def agrees(how):
    """Global batches of 8 sequences."""
    alone = report(how["threads"](1), "--steps", "50", "--batch", "8", "--sample", "0")
    cut = report(how["threads"](1), "--steps", "50", "--batch", "8", "--accumulate", "4", "--sample", "0")
    agree("4 micro-batches", alone, cut, "step_losses")
    for name, way in how.items():
        for ranks in (2, 4):
            several = report(way(ranks), "--steps", "50", "--batch", str(8 // ranks), "--sample", "0")
            agree(f"{name} on {ranks}", alone, several, "step_losses")
            agree(f"{name} on {ranks}", {"held out": [alone["held_out_loss"]]},
                  {"held out": [several["held_out_loss"]]}, "held out")


def repeats(how):
    for name, way in how.items():
        hashes = [report(way(ranks), "--steps", "20", "--sample", "0")["weights_hash"] for ranks in (2, 2, 3, 3)]
        print(f"{name}: {hashes}", flush=True)
        if hashes[0] != hashes[1] or hashes[2] != hashes[3]:
            sys.exit(f"{name}: the same seed and ranks gave other weights")
        if hashes[0] == hashes[2]:
            sys.exit(f"{name}: 2 and 3 ranks gave the same weights, so the hash says nothing")


def stages(how):
    """Bit for bit in this machine's memory; MPI adds in an order of its own. Micro-batches differ by rounding."""
    few = ["--steps", "50", "--batch", "6", "--sample", "0", "--clip", "0.5", "--bucket-kib", "16"]
    several = {"threads": (2, 3), "shm": (3,), "shm of processes": (2,), "mpi": (2,)}
    said = {}
    for name, way in how.items():
        for ranks in several[name]:
            for stage in range(4):
                said[name, ranks, stage] = report(way(ranks), *few, "--zero", str(stage))
    for ranks in (2, 3):
        same_weights({key: one for key, one in said.items() if key[1] == ranks and key[0] != "mpi"})
    for name, ranks, stage in said:
        agree(f"stage {stage} on {ranks}, {name}", said["threads", ranks, 0], said[name, ranks, stage], "step_losses", 1e-5)
    for optimizer in ("muon", "lamb", "sgd"):
        each = [report(how["threads"](3), *few, "--optimizer", optimizer, "--zero", str(stage)) for stage in range(4)]
        each.append(report(how["threads"](3), *few, "--optimizer", optimizer, "--zero", "1", "--state-folder", tempfile.gettempdir()))
        same_weights({(optimizer, stage): one for stage, one in enumerate(each)})
        if not each[0]["step_losses"][-1] < each[0]["step_losses"][0] - 0.1:
            sys.exit(f"{optimizer} does not learn: {each[0]['step_losses']}")
    for stage in range(4):
        cut = report(how["threads"](2), *few, "--zero", str(stage), "--accumulate", "2")
        agree(f"2 micro-batches, stage {stage}", said["threads", 2, 0], cut, "step_losses")
    fixed = ["--steps", "20", "--batch", "1", "--sample", "0", "--clip", "0.5", "--reproducible"]
    for flags in ([], ["--precision", "bf16"], ["--optimizer", "muon"]):
        same_weights({f"{ranks} {name} at stage {stage}, {' '.join(flags)}":
                      report(how[name](ranks), *fixed, *flags, "--zero", stage)
                      for name, ranks, stage in [("threads", 1, "0"), ("threads", 8, "2"), ("shm", 2, "3"), ("mpi", 4, "1")]
                      if name in how})


def splits(how):
    """Meshes of (data, model), of which the last leaves one rank without a head; global batches of 4 sequences. The losses
    are those of one process that has the model whole, which is other code."""
    few = ["--steps", "20", "--sample", "5", "--clip", "0.5"]
    alone = report(how["threads"](1), *few, "--batch", "4")

    def check(name, way, data, model, stage):
        said = report(way(data * model), *few, "--batch", str(4 // data), "--zero", str(stage),
                      "--mesh", f"data={data},model={model}")
        what = f"{data} x {model}, stage {stage}, {name}"
        agree(what, alone, said, "step_losses")
        agree(what, {"held out": [alone["held_out_loss"]]}, {"held out": [said["held_out_loss"]]}, "held out")
        if said["parameters"] != alone["parameters"] or len(said["sample"]) < 5:
            sys.exit(f"{what}: {said['parameters']} weights of {alone['parameters']}, the sample is {said['sample']!r}")

    for data, model in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3)):
        for stage in (0, 1):
            check("threads", how["threads"], data, model, stage)
    check("threads", how["threads"], 2, 2, 3)
    for stage, mesh in ((0, "data=2,model=1"), (1, "data=1,model=2"), (2, "data=2,model=1"), (3, "data=2,model=2")):
        ranks = 4 if stage == 3 else 2
        flags = [*few, "--batch", "4" if "data=1" in mesh else "2", "--zero", str(stage), "--accumulate", "2", "--mesh", mesh]
        kept, again = report(how["threads"](ranks), *flags), report(how["threads"](ranks), *flags, "--recompute")
        agree(f"{mesh}, stage {stage}, 2 micro-batches", alone, kept, "step_losses")
        on_disk = report(how["threads"](ranks), *flags, "--state-folder", tempfile.gettempdir())
        same_weights({f"{mesh}, stage {stage}": kept, "the same, recomputed": again, "the same, states in files": on_disk})
        if not all(memory["optimizer"]["peak"] == 0 < memory["offloaded"]["held"] for memory in on_disk["memory"]):
            sys.exit(f"states are not in files: {on_disk['memory']}")
        most, least = (said["memory"][0]["activations"]["peak"] for said in (kept, again))
        print(f"activations of at most {most} bytes, recomputed {least}", flush=True)
        if not least < most:
            sys.exit("recomputing does not save memory")
    # Sequences in parts, of which 3 ranks have unequal ones.
    one = report(how["threads"](1), *few, "--batch", "4", "--mesh", "data=1,model=1")
    for stage, (data, context, model), flags in ((0, (1, 2, 1), ()), (1, (1, 3, 1), ("--recompute",)), (3, (2, 2, 1), ()), (2, (1, 2, 2), ())):
        mesh = f"data={data},context={context},model={model}"
        said = report(how["threads"](data * context * model), *few, *flags, "--batch", str(4 // data), "--zero", str(stage), "--mesh", mesh)
        agree(mesh, one, said, "step_losses", 1e-6)
        agree(mesh, {"held out": [one["held_out_loss"]]}, {"held out": [said["held_out_loss"]]}, "held out", 1e-6)
        most, least = (each["memory"][0]["activations"]["peak"] for each in (one, said))
        print(f"activations of at most {most} bytes, on {mesh} {least}", flush=True)
        if not least * 1.8 < most:
            sys.exit("sharding sequences does not save memory")
    exact = report(how["threads"](4), *few, "--batch", "2", "--mesh", "data=2,model=2")
    short = report(how["threads"](1), *few, "--batch", "4", "--precision", "bf16")
    for stage in (0, 3):
        said = report(how["threads"](4), *few, "--batch", "2", "--precision", "bf16", "--zero", str(stage), "--mesh", "data=2,model=2")
        agree(f"2 x 2 in bf16, stage {stage}", short, said, "step_losses", 1e-3)
    # Of a mesh, Muon's matrices are transposed, and so is its factor, which depends on the ratio of rows to columns.
    for flags, given, bound in ((("--optimizer", "lamb"), ("--optimizer", "lamb"), 1e-4),
                                (("--optimizer", "muon"), ("--optimizer", "muon", "--mesh", "data=1,model=1"), 1e-6),
                                (("--compress", "bf16"), (), 1e-2)):
        expected = report(how["threads"](1), *few, "--batch", "4", *given)
        for stage in (0, 3):
            said = report(how["threads"](4), *few, *flags, "--batch", "2", "--zero", str(stage), "--mesh", "data=2,model=2")
            agree(f"2 x 2, stage {stage}, {' '.join(flags)}", expected, said, "step_losses", bound)
            if "--compress" in flags and said["step_losses"] == exact["step_losses"]:
                sys.exit("--compress changes nothing")
    for name, way in how.items():
        if name != "threads":
            check(name, way, 2, 2, 1)


def pipelines(how):
    """Global batches of 16 sequences in 4 micro-batches. Only the order of work differs where neither an axis nor a tied
    table splits a sum."""
    steps = ["--steps", "3", "--clip", "0.5", "--accumulate", "4"]
    few = [*steps, "--sample", "0"]

    def run(mesh, *flags, name="threads", sample="0"):
        stages, data, model = mesh
        return report(how[name](stages * data * model), *steps, "--sample", sample, "--batch", str(16 // data), "--mesh",
                      f"pipeline={stages},data={data},model={model}", *flags)

    def same_losses(what, alone, said, bound=1e-6):
        agree(what, alone, said, "step_losses", bound)
        agree(what, {"held out": [alone["held_out_loss"]]}, {"held out": [said["held_out_loss"]]}, "held out", bound)
        if said["parameters"] != alone["parameters"]:
            sys.exit(f"{what}: {said['parameters']} weights instead of {alone['parameters']}")

    one = report(how["threads"](1), *few, "--batch", "16", "--mesh", "data=1,model=1", "--untied")
    for data, model in ((1, 1), (2, 1), (1, 2)):
        alone = one if data * model == 1 else run((1, data, model), "--untied")
        same_losses(f"1 x {data} x {model}", one, alone)
        runs = {"gpipe, recomputed": run((2, data, model), "--untied", "--schedule", "gpipe", "--recompute"),
                "zb-h1, stage 3": run((2, data, model), "--untied", "--schedule", "zb-h1", "--zero", "3")}
        if data * model == 1:
            runs |= {"1f1b": run((2, 1, 1), "--untied"), "interleaved": run((2, 1, 1), "--untied", "--schedule", "interleaved"),
                     "4 stages": run((4, 1, 1), "--untied"), "4 stages, zb-h1": run((4, 1, 1), "--untied", "--schedule", "zb-h1")}
        same_weights({f"1 x {data} x {model}": alone, **runs})
        for what, said in runs.items():
            same_losses(what, alone, said)
    with tempfile.TemporaryDirectory() as folder:
        said, logits = {}, {}
        for stages, flags in ((1, ()), (2, ()), (2, ("--schedule", "interleaved")), (4, ("--zero", "3"))):
            file = os.path.join(folder, f"logits{len(said)}")
            what = " ".join((f"{stages} stages", *flags))
            said[what] = run((stages, 1, 1), "--untied", "--logits", file, *flags, sample="40")["sample"]
            logits[what] = read_bytes(file)
        print(f"samples: {said}", flush=True)
        if len(set(said.values())) != 1 or len(said["1 stages"]) < 40 or len(set(logits.values())) != 1:
            sys.exit("the samples or the logits differ")
    tied = report(how["threads"](1), *few, "--batch", "16", "--mesh", "data=1,model=1")
    for name in how:
        same_losses(f"tied, 2 x 1 x 1, {name}", tied, run((2, 1, 1), name=name))
    same_losses("tied, 4 x 1 x 2", tied, run((4, 1, 2), "--schedule", "interleaved", "--chunks", "1"))
    context = report(how["threads"](4), *few, "--batch", "16", "--mesh", "pipeline=2,data=1,context=2,model=1")
    same_losses("tied, 2 stages, context 2", tied, context)
    same_losses("tied, 2 x 2 x 2, stage 2", tied, run((2, 2, 2), "--schedule", "zb-h1", "--zero", "2", "--recompute"))
    short = report(how["threads"](1), *few, "--batch", "16", "--mesh", "data=1,model=1", "--precision", "bf16")
    same_losses("bf16", short, run((2, 1, 1), "--precision", "bf16"), 1e-3)
    same_losses("bf16, stages without blocks", short, run((8, 1, 1), "--precision", "bf16"), 1e-3)


def experts(how):
    """One MLP for all tokens is replaced by 4, of which each token passes 2."""
    few = ["--steps", "3", "--sample", "8", "--clip", "0.5", "--experts", "4"]

    def run(sizes, *flags, name="threads"):
        data, shards, context, model = sizes
        return report(how[name](data * shards * context * model), *few, "--batch", str(8 // data // shards), "--mesh",
                      f"data={data},experts={shards},context={context},model={model}", *flags)

    # Micro-batches are the batches of the ranks; a tied table would be added to in another order.
    one = report(how["threads"](1), *few, "--batch", "8", "--mesh", "data=1,model=1", "--untied", "--accumulate", "2")
    same_weights({"one process": one, **{name: run((1, 2, 1, 1), "--untied", name=name) for name in how},
                  "stage 3, recomputed": run((1, 2, 1, 1), "--untied", "--zero", "3", "--recompute")})
    limited = ["--untied", "--capacity", "0.75", "--experts-per-token", "1"]
    same_weights({"limited": report(how["threads"](1), *few, "--batch", "8", "--mesh", "data=1,model=1", "--accumulate", "4", *limited),
                  "4 ranks": run((1, 4, 1, 1), *limited)})
    alone = report(how["threads"](1), *few, "--batch", "8", "--mesh", "data=1,model=1", "--balance", "0")
    for sizes, stage in (((2, 2, 1, 1), 2), ((1, 2, 2, 1), 0), ((1, 2, 1, 2), 1), ((2, 2, 1, 2), 3)):
        agree(f"{sizes}, stage {stage}", alone, run(sizes, "--balance", "0", "--zero", str(stage)), "step_losses", 1e-6)
    short = run((1, 1, 1, 1), "--balance", "0", "--precision", "bf16")
    agree("bf16", short, run((1, 2, 1, 1), "--balance", "0", "--precision", "bf16"), "step_losses", 1e-3)
    agree("bf16", alone, short, "step_losses", 1e-2)


def costs(how):
    """Ranks that do not divide the weights, too. Stage 3 sends no weights if it maps them; otherwise it gathers most weights twice a step, the vectors of the tokens, which
    are used at both ends, a third time, and those of the places, which have nothing before them, once."""
    few = ["--steps", "4", "--sample", "0", "--batch", "2"]
    for precision, size in (("f32", 4), ("bf16", 2)):
        for ranks in (2, 3):
            for stage, flags in ((0, ()), (1, ()), (2, ()), (3, ()), (3, ("--gather-weights",)), (2, ("--state-folder", tempfile.gettempdir()))):
                said = report(how["threads"](ranks), *few, "--zero", str(stage), "--precision", precision, *flags)
                name = " ".join((f"stage {stage} in {precision} on {ranks}", *flags))
                padding = 64 * 16  # arrays, of which each begins on a line of 64 bytes
                held_as_planned(name, said, padding)
                more = size * 32 * (said["vocabulary"] - 32) * (ranks - 1) / ranks if "--gather-weights" in flags else 0
                planned, sent = said["plan"]["sent"] + more, sent_per_step(said)
                print(f"{name}: a step sends {sent:.0f} bytes, planned {planned:.0f}", flush=True)
                if abs(sent - planned) > padding:
                    sys.exit(f"{name}: that differs by more than {padding}")


def fakes(how, program):
    """To the byte; a real job's traffic is all ranks' together. Threads share memory, which a fake rank does not."""
    few = ["--batch", "2", "--sample", "0", "--gather-weights"]
    for ranks, flags in ((3, ()), (4, ("--mesh", "data=2,model=2")), (4, ("--mesh", "pipeline=2,data=2,model=1", "--accumulate", "2"))):
        for stage in (0, 1) if flags else (0, 1, 2, 3):
            chosen = [*few, "--zero", str(stage), *flags]
            # The first steps are others: ranks compare their options, and the order of units is not known.
            first, real = (report(how["threads"](ranks), *chosen, "--steps", steps) for steps in ("2", "3"))
            expected = ranks * (3 * sent_per_step(real) - 2 * sent_per_step(first))
            fake = [report([program], *TINY, *SHORT, *chosen, "--fake", str(ranks), "--rank", str(rank)) for rank in range(ranks)]
            name = " ".join((f"stage {stage}", *flags))
            sent = sum(moved["sent_bytes"] for said in fake for moved in said["traffic"].values())
            print(f"{name}: {ranks} fake ranks send {sent} bytes in a step", flush=True)
            if sent != round(expected):
                sys.exit(f"{name}: the real ones send {expected}")
            if [said["memory"] for said in fake] != real["memory"]:
                sys.exit(f"{name}: fake ranks hold {[said['memory'] for said in fake]}, real ones {real['memory']}")


def compresses(how):
    few = ["--steps", "60", "--batch", "4", "--sample", "0", "--learning-rate", "1e-3"]
    for name, way in how.items():
        exact = report(way(2), *few)
        for compress, most in (("bf16", 0.501), ("int8", 0.26), ("powersgd", 0.75)):
            said = report(way(2), *few, "--compress", compress)
            loss, sent = said["held_out_loss"] / exact["held_out_loss"], sent_per_step(said) / sent_per_step(exact)
            print(f"{name}, {compress}: {loss:.4f} times the loss, {sent:.3f} of the bytes", flush=True)
            if abs(loss - 1) > 0.01 or sent > most:
                sys.exit(f"the loss must be within 1%, and the bytes at most {most}")
            if name == "threads" and compress != "int8":
                same_weights({"stage 0": said, "stage 2": report(way(2), *few, "--zero", "2", "--compress", compress)})
        exact, said = (report(way(2), *few, "--zero", "3", *flags) for flags in (["--gather-weights"], ["--compress", "weights-int8"]))
        loss = said["held_out_loss"] / exact["held_out_loss"]
        sent, sent_exactly = (one["traffic"]["all_gather"]["sent_bytes"] for one in (said, exact))
        print(f"{name}, weights-int8: {loss:.4f} times the loss, {sent / sent_exactly:.3f} of the bytes of weights", flush=True)
        if abs(loss - 1) > 0.01 or sent > 0.26 * sent_exactly:
            sys.exit("the loss must be within 1%, and the bytes at most 0.26")


def precision(how):
    """The master weights are float: what bfloat16 would round away adds up."""
    few = ["--steps", "300", "--batch", "8", "--sample", "0"]
    calm = [*few, "--learning-rate", "1e-3"]  # larger ones amplify each rounding, on some texts by more than the bound
    full = report(how["threads"](2), *calm)["held_out_loss"]
    said = {stage: report(how["threads"](2), *calm, "--precision", "bf16", "--zero", str(stage)) for stage in (0, 3)}
    same_weights(said)
    short = said[0]["held_out_loss"]
    print(f"held-out loss {full:.4f} in f32, {short:.4f} in bf16", flush=True)
    if not short < full + 0.01:
        sys.exit("bf16 does not learn as f32 does")
    cut = report(how["shm"](2), *few, "--precision", "bf16", "--zero", "2", "--accumulate", "4", "--optimizer", "sgd")
    if not cut["step_losses"][-1] < cut["step_losses"][0] - 1:
        sys.exit(f"bf16 in micro-batches does not learn: {cut['step_losses'][0]} to {cut['step_losses'][-1]}")


def resumes(how):
    few = ["--steps", "80", "--batch", "2", "--sample", "0"]
    cases = [("threads", 3, ["--zero", "3", "--clip", "0.5"]), ("shm", 2, ["--zero", "1", "--precision", "bf16"]),
             ("threads", 4, [*SHORT, "--zero", "1", "--accumulate", "2", "--mesh", "data=2,model=2"]),
             ("shm", 4, [*SHORT, "--zero", "1", "--accumulate", "2", "--mesh", "pipeline=2,data=2,model=1", "--schedule", "zb-h1"])]
    for name, ranks, flags in cases:
        resume(f"{name} on {ranks}", [*how[name](ranks), *few, *flags])


def models(how):
    """A model of more than 256 tokens is saved, and every number of ranks and every stage begins with its logits."""
    with tempfile.TemporaryDirectory() as folder:
        def path(name):
            return os.path.join(folder, name)

        tokens = array.array("H", (i * i % 999 for i in range(4000)))
        with open(path("tokens.bin"), "wb") as file:
            tokens.tofile(file)
        data = ["--tokens", path("tokens.bin"), "--sample", "2"]
        first = report(how["threads"](2), *data, *TINY, "--steps", "20", "--zero", "3", "--save-model", path("first"))
        if first["vocabulary"] != max(tokens) + 1 or not first["step_losses"][-1] < first["step_losses"][0] - 0.5:
            sys.exit(f"a vocabulary of {first['vocabulary']} is learnt with losses {first['step_losses']}")
        said, logits = {}, set()
        for name, way in how.items():
            for ranks, stage in ((1, 0), (2, 0), (2, 3)):
                run = f"{name} {ranks} {stage}"
                said[run] = report(way(ranks), *data, "--model", path("first"), "--in-order", "--batch", str(4 // ranks),
                                   "--steps", "10", "--learning-rate", "0.001", "--zero", str(stage),
                                   "--logits", path(run), "--context", "16")
                logits.add(read_bytes(path(run)))
                agree(run, said["threads 1 0"], said[run], "step_losses", 1e-5)
        if len(logits) != 1:
            sys.exit("the logits of the model depend on the ranks or the stage")
        if not abs(said["threads 1 0"]["step_losses"][0] - first["step_losses"][-1]) < 0.5:
            sys.exit(f"the training did not start from the model: {said['threads 1 0']['step_losses']}")
        for mesh, batch in (("data=1,model=2", 4), ("data=2,model=1", 2)):
            agree(mesh, said["threads 1 0"],
                  report(how["threads"](2), *data, "--model", path("first"), "--in-order", "--batch", str(batch), "--steps", "10",
                         "--learning-rate", "0.001", "--context", "16", "--zero", "1", "--mesh", mesh), "step_losses")
        for run, mesh in (("same", []), ("split", ["--mesh", "data=1,model=2"])):
            report(how["threads"](2), *data, "--model", path("first"), "--steps", "1", "--learning-rate", "0",
                   "--save-model", path(run), *mesh)
            same_files(path("first"), path(run))
        start = [*how["threads"](2), "--tokens", path("tokens.bin"), "--model", path("first")]
        refused([*start, "--context", "33"], "--context 33 exceeds the 32 tokens", 1)
        refused([*start, "--token-type", "u32"], "is not among the", 1)
        refused([*start, "--save-model", path("same")], "exists: give --save-model another folder", 1)
        with open(os.path.join(path("same"), "config.json"), "w", encoding="utf-8") as file:
            file.write('{"model_type": "bert"}')
        refused([*how["threads"](2), "--tokens", path("tokens.bin"), "--model", path("same")], 'model_type "bert"', 1)


def refuses(program, mpi):
    with tempfile.TemporaryDirectory() as folder:
        empty = os.path.join(folder, "empty.txt")
        short = os.path.join(folder, "short.txt")
        enough = os.path.join(folder, "enough.txt")
        for path, text in ((empty, ""), (short, "short " * 20), (enough, "enough " * 2000)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        before = sorted(os.listdir(folder))
        few = [*TINY, "--steps", "3", "--sample", "0"]
        refuse(program, [
            (["--text", os.path.join(folder, "none.txt")], "none.txt cannot be opened"),
            (["--text", folder], "cannot be opened (Is a directory)"),
            (["--text", empty], "the text is empty"),
            (["--text", short], "must be longer than a context of"),
            (["--width", "64", "--heads", "5"], "not divisible by 5 heads"),
            (["--batch", "3", "--accumulate", "2"], "not divisible by --accumulate 2"),
            (["--text", enough, "--batch", "1000000"], "batch_size 1000000 exceeds"),
            ([*few, "--learning-rate", "nan"], "learning rate"),
            ([*few, "--learning-rate", "1e30"], "choose a lower --learning-rate"),
            (["--json", os.path.join(folder, "no", "file.json")], "cannot be written"),
            (["--steps", "0"], "--steps"),
            (["--zero", "4"], "--zero"),
            ([*few, "--state-folder", os.path.join(folder, "none")], "set .state_folder to an existing folder"),
            (["--mesh", "model=2"], "invalid --mesh"),
            (["--mesh", "data=2,model=2x"], "invalid --mesh"),
            (["--recompute"], "--mesh"),
            (["--mesh", "data=5,model=2"], "mesh 5 x 1 x 2 does not match"),
            (["--mesh", "data=1,experts=2,model=1"], "--mesh data=1,experts=2,model=1 shards experts, which the model has none of: give --experts"),
            (["--mesh", "data=1,model=1", "--experts", "2", "--experts-per-token", "3"], "--experts-per-token 3 exceeds --experts 2"),
            (["--mesh", "pipeline=1,data=1,model=1", "--experts", "2"], "--experts does not support pipelines"),
            (["--mesh", "data=1,model=1", "--experts", "2", "--fake", "2"], "--experts supports neither --fake nor --device cuda"),
            (["--mesh", "pipeline=2,data=1"], "invalid --mesh"),
            (["--mesh", "pipeline=3,data=1,model=1"], "mesh 3 x 1 does not match"),
            (["--mesh", "pipeline=1,data=1,model=1", "--device", "cuda"], "--device does not support pipelines"),
            (["--mesh", "data=1,model=2", "--device", "cuda", "--optimizer", "lamb"], "--device cuda supports neither --optimizer lamb or muon"),
            (["--mesh", "data=1,model=2", "--device", "cuda", "--optimizer", "muon"], "--device cuda supports neither --optimizer lamb or muon"),
            (["--mesh", "pipeline=2,data=1,model=1", "--schedule", "zb-h1"], "must not be below that of ranks"),
            (["--schedule", "gpipe"], "--mesh"),
            (["--seed", "-1"], "--seed"),
            (["--clip", "0"], "give --clip a number above 0"),
            (["--precision", "f16"], "--precision"),
            (["--every", "5"], "--checkpoint"),
            (["--mesh", "data=1,model=2", "--untied", "--save-model", os.path.join(folder, "model")],
             "--save-model supports neither pipeline= of --mesh, --untied nor --experts"),
            (["--model", folder], "--tokens"),
            (["--tokens", enough, "--logits", enough], "enough.txt' exists: give --logits another name"),
            (["--tokens", enough, "--save-model", os.path.join(enough, "no")], "give --save-model a folder that you can write to"),
            (["--model", folder, "--tokens", short], "config.json' cannot be opened"),
            (["--model", folder, "--tokens", short, "--width", "8"], "--width"),
            (["--tokens", short, "--text", short], "--text"),
            (["--tokens", short, "--token-type", "u8"], "--token-type"),
            (["--tokens", empty], "empty.txt' is empty"),
            (["--tokens", os.path.join(folder, "none.bin")], "none.bin' (No such file"),
            (["--tokens", short], "must be longer than a context of"),
            (["--in-order"], "--tokens"),
            (["--backend", "smoke-signals"], "--backend"),
            (["--mesh", "data=1,model=2", "--reproducible"], "leave one of them out"),
            (["--reproducible", "--accumulate", "2"], "--reproducible does not support --accumulate"),
            (["--compress", "f8"], "--compress"),
            (["--compress", "int8", "--precision", "bf16"], "--compress supports neither"),
            (["--compress", "weights-int8", "--zero", "2"], "needs --zero 3"),
            (["--mesh", "data=1,model=2", "--compress", "int8"], "use --compress bf16"),
            (["--rank", "1"], "--fake"),
            (["--fake", "4", "--save-model", os.path.join(folder, "model")], "leave out --save-model"),
            (["--fake", "4", "--rank", "4"], "--rank 4 is not one of the 4 ranks of --fake"),
        ], mpi)
        if sorted(os.listdir(folder)) != before:
            sys.exit(f"something was left behind: {os.listdir(folder)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["learns", "agrees", "repeats", "stages", "splits", "experts", "pipelines", "costs", "fakes", "precision", "compresses",
                                          "resumes", "models", "refuses"])
    parser.add_argument("program")
    parser.add_argument("--mpi", action="store_true")
    options = parser.parse_args()
    if options.what == "refuses":
        refuses(options.program, options.mpi)
    else:
        common = {"models": [], "learns": TINY, "precision": TINY, "resumes": TINY,
                  "pipelines": ["--layers", "4", *TINY[2:], *SHORT]}.get(options.what, [*TINY, *SHORT])
        how = ways(options.program, options.mpi, common)
        {"fakes": functools.partial(fakes, program=options.program), "learns": learns, "agrees": agrees, "repeats": repeats, "stages": stages, "splits": splits, "experts": experts, "pipelines": pipelines,
         "costs": costs, "precision": precision, "compresses": compresses, "resumes": resumes, "models": models}[options.what](how)


if __name__ == "__main__":
    main()
