#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trains a GPT-2 of transformers with train_gpt and with PyTorch, and compares logits, losses and weights.

    tests/examples/train_gpt_transformers.py TRAIN_GPT

The model is small and random, and saved by save_pretrained: whole and in shards, with and without the prefix of its names.
The commands of docs/checkpoints.md are run as well. Skipped, with the reason, where PyPI's torch, transformers, safetensors
and numpy are absent.
"""
import json
import math
import os
import re
import subprocess
import sys
import tempfile

from programs import agree, report

try:
    import numpy
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}; install PyPI's torch, transformers, safetensors and numpy")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "distx-checkpoint")
VOCABULARY, CONTEXT, STEPS, BATCH, RATE = 1000, 32, 20, 4, 1e-3
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
IDS = {"bos_token_id": None, "eos_token_id": None}
# The names of train_gpt's weights, for those of transformers.
LAYERS = {"ln_1": "norm1", "attn.c_attn": "projections", "attn.c_proj": "output", "ln_2": "norm2", "mlp.c_fc": "wide",
          "mlp.c_proj": "narrow"}


def make_model(bias=0.1):
    """All biases and norms are random, too."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=48, n_layer=2, n_head=4,
                                     layer_norm_epsilon=1e-3, **dict.fromkeys(DROPOUTS, 0.1), **IDS)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += bias * torch.randn_like(weight)
            else:
                weight *= 3
    return model.eval()  # without dropout


def losses_of_pytorch(model, tokens):
    """Adam as train_gpt has it: its betas, no decay of biases and norms, a warm-up of a twentieth and a cosine."""
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    losses, warm_up = [], STEPS // 20
    for step in range(STEPS):
        begin = step * BATCH * CONTEXT
        batch = torch.tensor(tokens[begin:begin + BATCH * CONTEXT + 1].astype(numpy.int64))
        logits = model(batch[:-1].reshape(BATCH, CONTEXT)).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[1:])
        optimizer.zero_grad()
        loss.backward()
        rate = RATE * (step + 1) / warm_up if step < warm_up else \
            RATE * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (STEPS - warm_up)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses


def name_in_train_gpt(name):
    parts = name.removeprefix("transformer.").split(".")
    if parts[0] in ("wte", "wpe"):
        return "embedding.tokens" if parts[0] == "wte" else "embedding.positions"
    layer = "norm" if parts[0] == "ln_f" else f"block{parts[1]}.{LAYERS['.'.join(parts[2:-1])]}"
    if parts[-2].startswith("ln_"):
        return f"{layer}.{'scale' if parts[-1] == 'weight' else 'shift'}"
    return f"{layer}.{parts[-1]}"


def same(name, weights, model):
    """The weights of a model of transformers are these, to the bit."""
    found = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
    wrong = [key for key in found if not torch.equal(found[key], weights[key])]
    if wrong or set(found) != set(weights):
        sys.exit(f"{name}: transformers has other values of {wrong or set(found) ^ set(weights)}")
    print(f"{name}: {len(found)} tensors are equal", flush=True)


def weights_of_checkpoint(directory, file):
    """By the names of transformers, transposed as it has them."""
    subprocess.run([sys.executable, TOOL, "consolidate", directory, file], check=True, stdout=subprocess.DEVNULL)
    saved = load_file(file)
    weights = {}
    for name, like in make_model().transformer.state_dict(prefix="transformer.").items():
        value = saved.pop(name_in_train_gpt(name))
        matrix = like.dim() == 2 and ".h." in name
        weights[name] = value.T.contiguous() if matrix else value.reshape(like.shape)
    if saved:
        sys.exit(f"the checkpoint has more weights: {list(saved)}")
    return weights


def follow_the_page(program):
    """Runs the blocks of the section about this in docs/checkpoints.md, in a folder of their own."""
    with open(os.path.join(ROOT, "docs", "checkpoints.md"), encoding="utf-8") as page:
        section = page.read().split("## Train a GPT-2 of Hugging Face")[1].split("\n## ")[0]
    blocks = re.findall(r"```(python|sh)\n(.*?)```", section, re.DOTALL)
    if [kind for kind, _ in blocks] != ["python", "sh", "python"]:
        sys.exit("docs/checkpoints.md has other blocks")
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for kind, block in blocks:
            if kind == "python":
                exec(block, {})  # pylint: disable=exec-used
            else:
                subprocess.run(["bash", "-ec", block.replace("build/examples/train_gpt", program)], check=True,
                               stdin=subprocess.DEVNULL)
        os.chdir(before)
    print("the commands of docs/checkpoints.md work", flush=True)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    follow_the_page(os.path.abspath(sys.argv[1]))
    tokens = numpy.random.default_rng(1).zipf(1.3, size=2 * STEPS * BATCH * CONTEXT) % VOCABULARY
    with tempfile.TemporaryDirectory() as folder:
        def path(*names):
            return os.path.join(folder, *names)

        tokens.astype(numpy.uint16).tofile(path("tokens.bin"))
        tokens.astype(numpy.uint32).tofile(path("tokens32.bin"))
        model = make_model()
        original = {name: value.clone() for name, value in model.transformer.state_dict(prefix="transformer.").items()}
        model.save_pretrained(path("whole"))
        model.save_pretrained(path("sharded"), max_shard_size="100KB")
        model.transformer.save_pretrained(path("bare"))  # without the prefix
        if not os.path.exists(path("sharded", "model.safetensors.index.json")):
            sys.exit("transformers has not saved shards")
        with torch.no_grad():
            wanted = model(torch.tensor(tokens[None, :CONTEXT])).logits[0]
        losses = losses_of_pytorch(model, tokens)
        if not losses[-1] < losses[0] - 0.1:
            sys.exit(f"PyTorch does not learn: {losses}")

        runs = [("whole", 1, 0), ("bare", 2, 0), ("sharded", 1, 3), ("whole", 2, 3)]
        for source, ranks, stage in runs:
            name = f"{source} on {ranks}, stage {stage}"
            run = f"{source}-{ranks}-{stage}"
            data = ["tokens32.bin", "--token-type", "u32"] if ranks == 1 else ["tokens.bin"]
            said = report([sys.argv[1], "--backend", "threads", "--ranks", str(ranks), "--zero", str(stage),
                           "--model", path(source), "--tokens", path(data[0]), *data[1:], "--in-order",
                           "--batch", str(BATCH // ranks), "--steps", str(STEPS), "--learning-rate", str(RATE),
                           "--sample", "3", "--logits", path(f"{run}.logits"), "--checkpoint", path(run),
                           "--save-model", path(f"{run}-model")])
            logits = load_file(path(f"{run}.logits"))["logits"]
            worst = (logits - wanted).abs().max().item()
            print(f"{name}: logits of up to {wanted.abs().max():.2f} differ by at most {worst:.2g}", flush=True)
            if logits.shape != wanted.shape or not worst <= 1e-5:
                sys.exit(f"{name}: that is more than 1e-5")
            agree(name, {"step_losses": losses}, said, "step_losses", 1e-5)
            loaded = transformers.GPT2LMHeadModel.from_pretrained(path(f"{run}-model"))
            same(name, weights_of_checkpoint(path(run), path(f"{run}.safetensors")), loaded)
            with open(path(source, "config.json"), encoding="utf-8") as before, \
                    open(path(f"{run}-model", "config.json"), encoding="utf-8") as after:
                if json.load(before) != json.load(after):
                    sys.exit(f"{name}: the configuration changed")
        # Without a change by training, transformers has its weights back.
        report([sys.argv[1], "--backend", "threads", "--ranks", "2", "--zero", "2", "--model", path("sharded"),
                "--tokens", path("tokens.bin"), "--steps", "1", "--learning-rate", "0", "--sample", "0",
                "--save-model", path("back")])
        same("back", original, transformers.AutoModelForCausalLM.from_pretrained(path("back")))
        # A model of train_gpt, which has learnt from a text.
        report([sys.argv[1], "--backend", "serial", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16",
                "--steps", "3", "--sample", "0", "--precision", "bf16", "--save-model", path("text")])
        loaded = transformers.AutoModelForCausalLM.from_pretrained(path("text"), dtype="auto")
        if loaded.dtype != torch.bfloat16 or loaded.config.n_positions != 16:
            sys.exit(f"the model that has learnt from a text has {loaded.dtype} and {loaded.config}")


if __name__ == "__main__":
    main()
