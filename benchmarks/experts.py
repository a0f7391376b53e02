#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Times training steps of a mixture of experts by distx in turn with PyTorch's all_to_all_single, both over Gloo.

    benchmarks/experts.py BUILD [--ranks 2] [--experts 8] [--per-token 2] [--width 256] [--inner 256] [--tokens 1024]

Needs PyTorch, and BUILD/benchmarks/experts with Gloo. Each rank has one thread. A step is a forward and a backward pass with the
router's losses, the sum of the gate's gradient, and SGD. Prints the medians of the alternations' medians.
"""
import argparse
import re
import statistics
import sys
import time

from peers.ranks import run_program, run_script


def train(rank, store, options):
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    ranks, experts, k, width = options.ranks, options.experts, options.per_token, options.width
    own = experts // ranks

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, sent, received):
            ctx.counts = sent, received
            out = rows.new_empty(sum(received), rows.shape[1])
            dist.all_to_all_single(out, rows, received, sent)
            return out

        @staticmethod
        def backward(ctx, gradient):
            sent, received = ctx.counts
            out = gradient.new_empty(sum(sent), gradient.shape[1])
            dist.all_to_all_single(out, gradient.contiguous(), sent, received)
            return out, None, None

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    gate = torch.nn.Parameter(0.1 * (torch.rand(width, experts) - 0.5))
    torch.manual_seed(2 + rank)
    wide = torch.nn.Parameter(0.1 * (torch.rand(own, width, options.inner) - 0.5))
    narrow = torch.nn.Parameter(0.1 * (torch.rand(own, options.inner, width) - 0.5))
    optimizer = torch.optim.SGD([gate, wide, narrow], lr=1e-3)
    x = (2 * (torch.rand(options.tokens, width) - 0.5)).requires_grad_()
    slope = 1e-3 * torch.rand(options.tokens, width)

    def layer(x):
        logits = x @ gate
        probabilities = logits.softmax(-1)
        weights, chosen = probabilities.topk(k)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        sizes = chosen.flatten().bincount(minlength=experts)
        received = torch.empty_like(sizes)
        dist.all_to_all_single(received, sizes)
        sent_to = sizes.view(ranks, own).sum(1).tolist()
        got_of = received.view(ranks, own).sum(1).tolist()
        rows = Exchange.apply(x[order // k], sent_to, got_of)
        expert = torch.arange(own).repeat(ranks).repeat_interleave(received)
        by_expert = expert.argsort(stable=True)
        parts = rows[by_expert].split(received.view(ranks, own).sum(0).tolist())
        results = torch.cat([functional.gelu(part @ w, approximate="tanh") @ n for part, w, n in zip(parts, wide.unbind(0), narrow.unbind(0))])
        results = torch.empty_like(results).index_copy(0, by_expert, results)
        back = Exchange.apply(results, got_of, sent_to)
        out = torch.zeros_like(x).index_add(0, order // k, back * weights.flatten()[order, None])
        balance = experts * (sizes / (k * len(x)) * probabilities.mean(0)).sum()
        return out, 0.01 * balance + 0.001 * logits.logsumexp(-1).square().mean()

    times = []
    for turn in range(options.rounds + 1):
        dist.barrier()
        begin = time.perf_counter()
        out, losses = layer(x)
        torch.autograd.backward([out, losses / ranks], [slope, None])
        dist.all_reduce(gate.grad)
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None
        slowest = torch.tensor([time.perf_counter() - begin])
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if turn > 0:
            times.append(slowest.item())
    if rank == 0:
        print(f"measured {1e3 * statistics.median(times):.3f} ms", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--ranks", type=int, default=2)
    shared = {"experts": 8, "per-token": 2, "width": 256, "inner": 256, "tokens": 1024, "rounds": 9}
    for name, usual in shared.items():
        parser.add_argument("--" + name, type=int, default=usual)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.experts % options.ranks:
        sys.exit(f"--experts {options.experts} is not divisible by --ranks {options.ranks}")
    if options.rank:
        return train(int(options.rank[0]), options.rank[1], options)
    flags = [word for name in shared for word in ("--" + name, str(getattr(options, name.replace("-", "_"))))]
    times = {"distx": [], "PyTorch": []}

    def add(library, text):
        times[library].append(float(re.search(r"measured (\S+) ms", text)[1]))

    for _ in range(options.alternations):
        add("distx", run_program(options.build, "experts", options.ranks, *flags))
        add("PyTorch", run_script(__file__, options.ranks, options.build, "--ranks", str(options.ranks), *flags))
    middle = {library: statistics.median(values) for library, values in times.items()}
    for library, values in times.items():
        print(f"{library:8} {middle[library]:9.3f} ms  ({min(values):.3f} to {max(values):.3f})")
    print(f"PyTorch / distx {middle['PyTorch'] / middle['distx']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
