#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_gpt_cuda as a user would, on GPUs or on the stand-in, and compares it with train_gpt on the host.

    tests/examples/train_gpt_cuda.py PROGRAM TRAIN_GPT

At every stage, on one GPU and several, with the weights whole or split, the losses are the host's within 1e-4; bfloat16,
micro-batches, clipping, recomputation, checkpoints and Hugging Face folders work; captured steps have the bits of those that
are not; what is not supported is refused.
"""
import array
import os
import sys
import tempfile

from programs import ROOT, agree, refused, report, resume, same_files, same_weights

MODEL = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16"]
SMALL = [*MODEL, "--batch", "2", "--learning-rate", "1e-3", "--sample", "2", "--text", os.path.join(ROOT, "docs", "dlpack.md")]
SHORT = [*SMALL, "--steps", "12"]


def main():
    program, host = sys.argv[1:]

    def on_gpus(data, model, *more):
        return [program, "--device", "cuda", "--ranks", str(data * model), "--mesh", f"data={data},model={model}", *more]

    def on_host(ranks, *more):
        return [host, "--backend", "threads", "--ranks", str(ranks), "--mesh", f"data={ranks},model=1", *more]

    expected = {}
    for ranks in (1, 2):
        expected[ranks] = report(on_host(ranks, *SHORT))
        for stage in range(4):
            said = report(on_gpus(ranks, 1, *SHORT, "--zero", str(stage)))
            agree(f"stage {stage} on {ranks}", expected[ranks], said, "step_losses")
            agree(f"stage {stage} on {ranks}, held out", {"loss": [expected[ranks]["held_out_loss"]]},
                  {"loss": [said["held_out_loss"]]}, "loss")
    agree("model=2", expected[1], report(on_gpus(1, 2, *SHORT, "--zero", "1")), "step_losses")
    several = ["--accumulate", "2", "--clip", "0.5", "--recompute", "--precision", "bf16", "--zero", "2"]
    agree("bf16", report(on_host(2, *SHORT, *several)), report(on_gpus(2, 1, *SHORT, *several)), "step_losses", 1e-2)
    bf16 = on_gpus(2, 1, *SHORT, "--precision", "bf16", "--zero", "1")
    offloaded = report(bf16, "--offload")
    same_weights({"in GPU memory": report(bf16), "offloaded": offloaded})
    for ledger in offloaded["memory"]:
        if ledger["offloaded"]["held"] == 0 or ledger["optimizer"]["peak"] != 0:
            sys.exit(f"--offload: {ledger}")
    for data, model, flags in [(1, 1, ["--zero", "0"]), (1, 2, ["--zero", "0", "--offload"]), (2, 1, ["--zero", "1"]), (2, 1, several)]:
        captured(on_gpus(data, model, *SMALL, "--steps", "6", *flags))
    folders(on_host, on_gpus)
    for what, words in [
        (["--ranks", "2"], "--device cuda needs --mesh"),
        (["--mesh", "data=1,model=1", "--backend", "threads"], "NCCL"),
        (["--mesh", "data=1,context=2,model=1"], "--device cuda does not support context="),
        (["--mesh", "pipeline=2,data=1,model=1", "--accumulate", "2"], "--device does not support pipelines"),
        (["--ranks", "1", "--mesh", "data=1,model=1", "--capture", "--zero", "3"], "stage 3 of ZeRO gathers weights between steps"),
        (["--mesh", "data=1,model=1", "--compress", "bf16"], "--device cuda supports neither --optimizer lamb or muon nor --compress"),
    ]:
        refused([program, "--device", "cuda", *what, *SHORT], words, 1)
    refused([host, "--backend", "threads", "--ranks", "1", "--mesh", "data=1,model=1", "--offload", *SHORT], ".offload supports GPU memory only", 1)
    refused([host, "--backend", "threads", "--ranks", "1", "--mesh", "data=1,model=1", "--capture", *SHORT], "--capture needs --device cuda", 1)
    refused([host, "--device", "cuda", "--mesh", "data=1,model=1", *SHORT], "use train_gpt_cuda", 1)
    resume("stage 2 on 2", on_gpus(2, 1, *SMALL, "--zero", "2", "--steps", "40"))
    resume("captured, stage 1 on 2", on_gpus(2, 1, *SMALL, "--zero", "1", "--steps", "40", "--capture"))


def captured(command):
    """Captured steps have the losses and weights of steps that are not, to the bit."""
    plain, replayed = report(command), report(command, "--capture")
    if plain["step_losses"] != replayed["step_losses"] or len(set(plain["step_losses"])) == 1:
        sys.exit(f"{command}: losses {plain['step_losses']}, captured {replayed['step_losses']}")
    same_weights({"not captured": plain, "captured": replayed})


def folders(on_host, on_gpus):
    """A Hugging Face folder of the host trains on GPUs with the host's losses, whole or split, and is saved with the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        def path(name):
            return os.path.join(folder, name)

        with open(path("tokens.bin"), "wb") as file:
            array.array("H", (i * i % 99 for i in range(4000))).tofile(file)
        data = ["--tokens", path("tokens.bin"), "--batch", "2", "--sample", "2"]
        host = on_host(1, *MODEL, *data, "--save-model", path("first"), "--steps", "3")
        report(host)
        start = [*data, "--model", path("first"), "--in-order"]
        trained = ["--steps", "6", "--learning-rate", "1e-3"]
        expected = report(on_host(1, *start, *trained))
        agree("a folder on model=2", expected, report(on_gpus(1, 2, *start, *trained)), "step_losses")
        for name, where in (("of-1", on_gpus(1, 1)), ("of-2", on_gpus(1, 2))):
            report(where, *start, "--steps", "1", "--learning-rate", "0", "--zero", "1", "--save-model", path(name))
            same_files(path("first"), path(name))
        bf16 = ["--precision", "bf16", "--steps", "1", "--learning-rate", "0", "--save-model"]
        report(on_host(1, *start, *bf16, path("host-bf16")))
        report(on_gpus(2, 1, *start, *bf16, path("gpu-bf16"), "--zero", "3"))
        same_files(path("host-bf16"), path("gpu-bf16"))


if __name__ == "__main__":
    main()
