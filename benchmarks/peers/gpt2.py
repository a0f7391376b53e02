#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times training steps of GPT-2 (124 million parameters) in PyTorch on one GPU, as benchmarks/torch_gpt2.cpp does by distx.

    python3 benchmarks/peers/gpt2.py [--batch 16] [--steps 20] [--rounds 3] [--compile] [--phases]

Bfloat16 by autocast over float32 weights, and bfloat16 weights; flash attention, the fused AdamW, gradients clipped to a
norm of 1. Prints the milliseconds of a step and tokens per second, the median of the rounds.
"""
import argparse
import contextlib
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 50304, 1024, 768, 12, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.attention(self.norm1(x)).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, text):
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)  # the head has the embedding's weights


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="the same by torch.compile, too")
    parser.add_argument("--phases", action="store_true", help="wait after each part of a step, and print its time")
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}, {options.batch} x {CONTEXT} tokens", flush=True)
    text = torch.randint(VOCABULARY, (options.batch, CONTEXT + 1), device="cuda")
    for compiled in (False, True)[:1 + options.compile]:
        for way in ("autocast", "bfloat16"):
            torch.manual_seed(1)
            with torch.device("cuda"):
                module = Gpt2()
            for weight in module.parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight, std=0.02)
            if way == "bfloat16":
                module = module.bfloat16()
            optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4, fused=True)
            run = torch.compile(module) if compiled else module
            autocast = torch.autocast("cuda", torch.bfloat16) if way == "autocast" else contextlib.nullcontext()

            def ends(phase, last=[0.0]):
                if options.phases:
                    torch.cuda.synchronize()
                    if phase is not None:
                        phase.append(1e3 * (time.perf_counter() - last[0]))
                    last[0] = time.perf_counter()

            def step(phases):
                ends(None)
                with autocast:
                    loss = F.cross_entropy(run(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
                ends(phases[0])
                loss.backward()
                ends(phases[1])
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                ends(phases[2])
                return loss

            times = []
            for turn in range(options.rounds + 1):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                phases = [[], [], []]
                for _ in range(options.steps):
                    loss = step(phases)
                torch.cuda.synchronize()
                if turn > 0:
                    times.append(1e3 * (time.perf_counter() - begin) / options.steps)
                if options.phases:
                    print("forward {:.2f}, backward {:.2f}, step {:.2f} ms".format(*map(statistics.median, phases)))
            milliseconds = statistics.median(times)
            print(f"{way}{' compiled' if compiled else '':9} {milliseconds:8.2f} ms a step, "
                  f"{options.batch * CONTEXT * 1e3 / milliseconds:9.0f} tokens/s, loss {loss.item():.4f}, "
                  f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
            torch.cuda.reset_peak_memory_stats()
            del module, optimizer, run, step


if __name__ == "__main__":
    main()
