#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The backend of python/ on CUDA tensors: on one rank, then on two that share a GPU, which NCCL takes for two hosts.

    tests/torch/cuda.py [--build FOLDER] [--ranks 1 2] [--checks NAME…] [--timings]

Builds the extension into FOLDER, by default a temporary one. Prints a line for each check and continues after one that
fails. With --timings, all_reduce through distx and through PyTorch's own NCCL backend, in turns, also with
NCCL_RUNTIME_CONNECT=0. 77 without a GPU.
"""
import argparse
import copy
import faulthandler
import gc
import os
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import c10d

LIMIT = 75  # seconds for all ranks of a run
DEADLINE = timedelta(seconds=10)
SIZES = (0, 1, 7, 1000, (1 << 20) + 3)
BACKEND = "cpu:distx,cuda:distx"
SLEEP = 60_000_000  # cycles of a GPU: tens of milliseconds


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def equal(found, expected, what, far=0.0):
    import torch
    expected = torch.as_tensor(expected).to(found.device, found.dtype)
    expect(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    wrong = (found != expected) if far == 0 else ((found - expected).abs() > far)
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise AssertionError(f"{what}: {int(wrong.sum())} of {found.numel()} are wrong, first at {where}: "
                             f"{found[tuple(where)].item()}, expected {expected[tuple(where)].item()}")


def raises(kind, text, f):
    try:
        f()
    except kind as error:
        expect(text in str(error), f"{kind.__name__} says {error!s}, expected {text!r}")
        return
    raise AssertionError(f"no {kind.__name__} was raised, expected {text!r}")


class Checks:
    """Each is run on all ranks, with a group that has not failed."""

    def __init__(self, group, rank, ranks):
        self.group, self.rank, self.ranks = group, rank, ranks

    def full(self, shape, value, dtype=None):
        import torch
        return torch.full(shape if isinstance(shape, tuple) else (shape,), value, device="cuda", dtype=dtype)

    def mine(self, count, dtype=None):
        """Small numbers that differ between ranks and elements."""
        import torch
        return (torch.arange(count, device="cuda") % 5 + self.rank + 1).to(dtype or torch.float32)

    def of(self, rank, count, dtype=None):
        return Checks(self.group, rank, self.ranks).mine(count, dtype)

    def check_first_call(self):
        import torch.distributed as dist
        x = self.full(3, self.rank + 1.0)
        dist.all_reduce(x, group=self.group)
        equal(x, [self.ranks * (self.ranks + 1) / 2] * 3, "sum")

    def check_libraries(self):
        """The process has one NCCL and one CUDA runtime: PyTorch's."""
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps}
        for name in ("libnccl.so", "libcudart.so"):
            found = sorted(path for path in paths if os.path.basename(path).startswith(name))
            expect(len(found) == 1, f"{name}: {found}")

    def check_all_reduce(self):
        import torch
        import torch.distributed as dist
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8,
                      torch.uint8):
            for count in SIZES:
                x = self.mine(count, dtype)
                dist.all_reduce(x, group=self.group)
                equal(x, sum(self.of(r, count, dtype) for r in range(self.ranks)), f"sum of {count} {dtype}")
        operands = [self.of(r, 1000) for r in range(self.ranks)]
        for op, expected in ((dist.ReduceOp.MAX, torch.stack(operands).amax(0)), (dist.ReduceOp.MIN, torch.stack(operands).amin(0)),
                             (dist.ReduceOp.PRODUCT, torch.stack(operands).prod(0)), (dist.ReduceOp.AVG, torch.stack(operands).mean(0))):
            x = self.mine(1000)
            dist.all_reduce(x, op, group=self.group)
            equal(x, expected, str(op))
        tensors = [self.mine(5), self.mine(70_000), self.mine(0)]
        dist.all_reduce_coalesced(tensors, group=self.group)
        for x in tensors:
            equal(x, sum(self.of(r, x.numel()) for r in range(self.ranks)), "coalesced")

    def check_other_types_and_ops(self):
        import torch
        import torch.distributed as dist
        ranks = self.ranks
        for op, expected in ((dist.ReduceOp.SUM, True), (dist.ReduceOp.PRODUCT, ranks == 1), (dist.ReduceOp.MAX, True),
                             (dist.ReduceOp.BAND, ranks == 1), (dist.ReduceOp.BOR, True)):
            x = torch.tensor([self.rank == 0], device="cuda")
            dist.all_reduce(x, op, group=self.group)
            expect(x.item() == expected, f"{op} of bool is {x.item()}")
        x = self.full(4, self.rank + 1.0, torch.complex64)
        dist.all_reduce(x, group=self.group)
        equal(x, [complex(ranks * (ranks + 1) / 2)] * 4, "complex")
        x = self.full(5, self.rank + 1.0)
        dist.all_reduce(x, dist._make_nccl_premul_sum(2.0), group=self.group)
        equal(x, [float(ranks * (ranks + 1))] * 5, "pre-multiplied sum")
        for op, f in ((dist.ReduceOp.BAND, int.__and__), (dist.ReduceOp.BOR, int.__or__), (dist.ReduceOp.BXOR, int.__xor__)):
            x = self.full(1001, 1 << self.rank | 1 << 9, torch.int64)
            dist.all_reduce(x, op, group=self.group)
            expected = 1 | 1 << 9
            for r in range(1, ranks):
                expected = f(expected, 1 << r | 1 << 9)
            equal(x, [expected] * 1001, f"{op} on the host")
        x = self.full(1001, self.rank + 1, torch.int16)
        dist.all_reduce(x, group=self.group)
        equal(x, [ranks * (ranks + 1) // 2] * 1001, "int16 on the host")

    def check_strides(self):
        import torch
        import torch.distributed as dist
        wide = self.full((4, 6), float(self.rank))
        x = wide[:, ::2]
        dist.all_reduce(x, group=self.group)
        equal(x, torch.full((4, 3), self.ranks * (self.ranks - 1) / 2), "every second column")
        equal(wide[:, 1::2], torch.full((4, 3), float(self.rank)), "the others")
        y = (torch.arange(6.0, device="cuda").view(2, 3).t() if self.rank == 0 else torch.zeros(3, 2, device="cuda"))
        dist.broadcast(y, 0, group=self.group)
        equal(y, torch.arange(6.0).view(2, 3).t(), "broadcast")
        out = [torch.zeros(2, 3, device="cuda").t() for _ in range(self.ranks)]
        dist.all_gather(out, y + self.rank, group=self.group)
        for r in range(self.ranks):
            equal(out[r], y + r, "all_gather")

    def check_broadcast_and_reduce(self):
        import torch
        import torch.distributed as dist
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in SIZES:
                for root in range(self.ranks):
                    x = self.mine(count, dtype)
                    dist.broadcast(x, root, group=self.group)
                    equal(x, self.of(root, count, dtype), f"broadcast of {count} {dtype}")
                    x = self.mine(count, dtype)
                    dist.reduce(x, root, group=self.group)
                    if self.rank == root:
                        equal(x, sum(self.of(r, count, dtype) for r in range(self.ranks)), f"reduce of {count} {dtype}")

    def check_all_gather(self):
        import torch
        import torch.distributed as dist
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in SIZES:
                expected = [self.of(r, count, dtype) for r in range(self.ranks)]
                out = [torch.empty(count, device="cuda", dtype=dtype) for _ in expected]
                dist.all_gather(out, self.mine(count, dtype), group=self.group)
                for r in range(self.ranks):
                    equal(out[r], expected[r], f"all_gather of {count} {dtype}")
                whole = torch.empty(count * self.ranks, device="cuda", dtype=dtype)
                dist.all_gather_into_tensor(whole, self.mine(count, dtype), group=self.group)
                equal(whole, torch.cat(expected), f"all_gather_into_tensor of {count} {dtype}")
        whole = torch.empty(7 * self.ranks, device="cuda")
        own = whole[7 * self.rank:7 * self.rank + 7]
        own.copy_(self.mine(7))
        dist.all_gather_into_tensor(whole, own, group=self.group)
        equal(whole, torch.cat([self.of(r, 7) for r in range(self.ranks)]), "in place")
        import torch.distributed._functional_collectives as functional
        for x in functional.all_gather_into_tensor_coalesced([self.mine(5), self.mine(7)], self.group):
            count = x.numel() // self.ranks
            equal(x + 0, torch.cat([self.of(r, count) for r in range(self.ranks)]), "functional, coalesced")

    def check_reduce_scatter(self):
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        def part(count, dtype=None):
            whole = sum(self.of(r, count * self.ranks, dtype) for r in range(self.ranks))
            return whole[count * self.rank:count * (self.rank + 1)]

        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in SIZES:
                x, out = self.mine(count * self.ranks, dtype), torch.empty(count, device="cuda", dtype=dtype)
                dist.reduce_scatter_tensor(out, x, group=self.group)
                equal(out, part(count, dtype), f"reduce_scatter_tensor of {count} {dtype}")
                dist.reduce_scatter(out.zero_(), list(x.split(count) if count else [x] * self.ranks), group=self.group)
                equal(out, part(count, dtype), f"reduce_scatter of {count} {dtype}")
        for x in functional.reduce_scatter_tensor_coalesced([self.mine(5 * self.ranks), self.mine(7 * self.ranks)], "sum",
                                                            [0, 0], self.group):
            equal(x + 0, part(x.numel()), "functional, coalesced")

    def check_all_to_all(self):
        import torch
        import torch.distributed as dist
        ranks, rank = self.ranks, self.rank
        x, out = self.mine(7 * ranks), torch.empty(7 * ranks, device="cuda")
        dist.all_to_all_single(out, x, group=self.group)
        equal(out, torch.cat([self.of(r, 7 * ranks)[7 * rank:7 * rank + 7] for r in range(ranks)]), "equal parts")
        sent, received = [rank + 2 * r for r in range(ranks)], [r + 2 * rank for r in range(ranks)]
        x, out = self.full(sum(sent), rank, torch.int64), torch.empty(sum(received), device="cuda", dtype=torch.int64)
        dist.all_to_all_single(out, x, received, sent, group=self.group)
        equal(out, [r for r in range(ranks) for _ in range(received[r])], "unequal parts")
        lists = [torch.empty(n, device="cuda", dtype=torch.int64) for n in received]
        dist.all_to_all(lists, list(x.split(sent)), group=self.group)
        for r in range(ranks):
            equal(lists[r], [r] * received[r], "lists")

    def check_gather_and_scatter(self):
        import torch
        import torch.distributed as dist
        for count in SIZES[:-1]:
            for root in range(self.ranks):
                here = self.rank == root
                out = [torch.empty(count, device="cuda") for _ in range(self.ranks)] if here else None
                dist.gather(self.mine(count), out, root, group=self.group)
                for r in range(self.ranks if here else 0):
                    equal(out[r], self.of(r, count), "gather")
                x = torch.empty(count, device="cuda")
                dist.scatter(x, [self.of(r, count) for r in range(self.ranks)] if here else None, root, group=self.group)
                equal(x, self.mine(count), "scatter")

    def check_messages(self):
        import torch
        import torch.distributed as dist
        if self.ranks == 1:
            return
        other = 1 - self.rank
        for count in SIZES:
            x = self.mine(count)
            if self.rank == 0:
                dist.send(x, 1, group=self.group)
            else:
                dist.recv(x, 0, group=self.group)
            equal(x, self.of(0, count), "send and recv")
            x = torch.empty(count, device="cuda")
            works = [dist.irecv(x, other, group=self.group), dist.isend(self.mine(count), other, group=self.group)]
            for work in works:
                work.wait()
            equal(x, self.of(other, count), "irecv and isend")
            x = torch.empty(count, device="cuda")
            for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, other, self.group),
                                                dist.P2POp(dist.isend, self.mine(count), other, self.group)]):
                work.wait()
            equal(x, self.of(other, count), "batch_isend_irecv")
        x = self.mine(5)
        if self.rank == 0:
            dist.isend(x, 1, group=self.group)  # its handle is dropped
        else:
            dist.recv(x, 0, group=self.group)
        equal(x, self.of(0, 5), "a handle that is dropped")

    def check_barrier(self):
        import torch
        import torch.distributed as dist
        dist.barrier(self.group)
        dist.barrier(self.group, device_ids=[torch.cuda.current_device()])
        work = dist.barrier(self.group, async_op=True)
        work.wait()

    def check_cpu_tensors(self):
        import torch
        import torch.distributed as dist
        x = torch.full((5,), self.rank + 1.0)
        dist.all_reduce(x, group=self.group)
        equal(x, [self.ranks * (self.ranks + 1) / 2] * 5, "sum")
        objects = [None] * self.ranks
        dist.all_gather_object(objects, {"rank": self.rank}, group=self.group)
        expect(objects == [{"rank": r} for r in range(self.ranks)], f"all_gather_object: {objects}")

    def check_stream_order(self):
        """A call follows a long kernel of the stream that is current, and does not block the host."""
        import torch
        import torch.distributed as dist
        for cycles, side in ((1000, torch.cuda.Stream()), (SLEEP, torch.cuda.current_stream()), (SLEEP, torch.cuda.Stream())):
            x = torch.zeros(100_003, device="cuda")
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with torch.cuda.stream(side):
                torch.cuda._sleep(cycles)
                x.fill_(self.rank + 1.0)
                dist.all_reduce(x, group=self.group)
                y = x * 2  # on the same stream, with no synchronization
                returned = time.perf_counter() - begin
            side.synchronize()
            took = time.perf_counter() - begin
            equal(y, [float(self.ranks * (self.ranks + 1))] * 100_003, "twice the sum")
            # The first round loads kernels, which waits for those that run.
            expect(cycles < SLEEP or returned < took * 0.7, f"the calls returned after {returned * 1e3:.1f} of {took * 1e3:.1f} ms")

    def check_async_work(self):
        import torch
        import torch.distributed as dist
        x = torch.zeros(1000, device="cuda")
        dist.all_reduce(x, group=self.group)
        x.fill_(x[0].item() + 1)  # loads kernels, which waits for those that run
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda._sleep(SLEEP)
        x.fill_(self.rank + 1.0)
        work = dist.all_reduce(x, group=self.group, async_op=True)
        expect(not work.is_completed(), "the work is complete before its input is")
        future = work.get_future().then(lambda f: f.value()[0] * 2)
        work.wait()
        y = x + 1
        returned = time.perf_counter() - begin
        total = self.ranks * (self.ranks + 1) / 2
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        expect(returned < took * 0.7, f"wait() returned after {returned * 1e3:.1f} of {took * 1e3:.1f} ms")
        expect(work.is_completed() and work.is_success(), "the work is not complete")
        equal(y, [total + 1] * 1000, "after wait()")
        equal(future.wait(), [2 * total] * 1000, "the future")
        equal(work.result()[0], [total] * 1000, "result()")
        work = dist.all_reduce(x, group=self.group, async_op=True)
        expect(work.wait(timedelta(seconds=5)), "wait with a timeout")
        expect(work.is_completed(), "wait with a timeout returned before the work is complete")

    def check_tensors_are_kept(self):
        """Memory that the caller releases while a call uses it is not given to others."""
        import torch
        import torch.distributed as dist
        count = (1 << 20) + 1
        for waits in (True, False):
            out, x = torch.empty(count * self.ranks, device="cuda"), self.mine(count)
            torch.cuda.synchronize()
            torch.cuda._sleep(SLEEP)
            x += 0
            work = dist.all_gather_into_tensor(out, x, group=self.group, async_op=True)
            del x
            if not waits:
                del work  # complete for all that, and before the next call's
            others = [torch.zeros(count, device="cuda") for _ in range(8)]
            if waits:
                work.wait()
            else:
                dist.all_reduce(others[0], group=self.group)
            equal(out, torch.cat([self.of(r, count) for r in range(self.ranks)]), f"waited for: {waits}")

    def check_refusals(self):
        """They are of one rank, and leave the group usable."""
        import torch
        import torch.distributed as dist
        group = self.group
        raises(ValueError, "average does not reduce", lambda: dist.all_reduce(self.full(3, 1), dist.ReduceOp.AVG, group=group))
        raises(ValueError, "bit_or does not reduce", lambda: dist.all_reduce(self.full(3, 1.0), dist.ReduceOp.BOR, group=group))
        raises(ValueError, "one device", lambda: dist.all_gather([torch.zeros(3)] * self.ranks, self.full(3, 1.0), group=group))
        sparse = torch.eye(3, device="cuda").to_sparse()
        raises(ValueError, "in host memory", lambda: dist.all_reduce(sparse, group=group))
        if self.ranks > 1:
            raises(ValueError, "must be contiguous", lambda: dist.send(self.full((4, 6), 1.0).t(), 1 - self.rank, group=group))
            raises(ValueError, "pass src", lambda: dist.recv(self.full(3, 1.0), group=group))
        self.check_first_call()

    def check_ddp(self):
        import torch
        from torch.nn.parallel import DistributedDataParallel
        torch.manual_seed(3)
        alone = torch.nn.Sequential(torch.nn.Linear(20, 333), torch.nn.ReLU(), torch.nn.Linear(333, 5)).double().cuda()
        model = copy.deepcopy(alone)
        if self.rank > 0:  # DDP gives all the first rank's weights
            for parameter in model.parameters():
                torch.nn.init.zeros_(parameter)
        wrapped = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], process_group=self.group,
                                          bucket_cap_mb=0.01, gradient_as_bucket_view=True)
        self.train(alone, wrapped, 20)
        for here, there in zip(alone.parameters(), model.parameters()):
            equal(there.detach(), here.detach(), "a weight after 5 steps", far=1e-12)

    def check_fully_shard(self):
        import torch
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(4)
        alone = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 5)).double().cuda()
        sharded = copy.deepcopy(alone)
        mesh = DeviceMesh.from_group(self.group, "cuda")
        for layer in (sharded[0], sharded[2], sharded):
            fully_shard(layer, mesh=mesh)
        self.train(alone, sharded, 6)
        for here, there in zip(alone.parameters(), sharded.parameters()):
            expect(self.ranks == 1 or there.to_local().numel() < here.numel(), "a weight is whole")
            equal(there.full_tensor().detach(), here.detach(), "a weight after 5 steps", far=1e-12)

    def train(self, alone, ours, inputs):
        import torch
        trainings = [(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)) for model in (alone, ours)]
        for step in range(5):
            torch.manual_seed(100 + step)
            batch = torch.randn(4 * self.ranks, inputs, dtype=torch.float64, device="cuda")
            for (model, optimizer), part in zip(trainings, (batch, batch[4 * self.rank:4 * self.rank + 4])):
                optimizer.zero_grad()
                model(part).square().mean().backward()
                optimizer.step()

    def check_group_for_cuda_alone(self):
        import torch.distributed as dist
        group = dist.new_group(backend="cuda:distx", timeout=DEADLINE)
        Checks(group, self.rank, self.ranks).check_first_call()
        dist.barrier(group)
        objects = [{"from": 0} if self.rank == 0 else None]
        dist.broadcast_object_list(objects, 0, group=group)
        expect(objects == [{"from": 0}], f"broadcast_object_list: {objects}")
        dist.destroy_process_group(group)

    def another_group(self, seconds):
        """A group with this deadline, which has made a call."""
        import torch.distributed as dist
        group = dist.new_group(backend=BACKEND, timeout=timedelta(seconds=seconds))
        Checks(group, self.rank, self.ranks).check_first_call()
        return group

    def check_rank_that_is_late(self):
        """The other's calls are a typed error in time, and so are later ones; other groups are not concerned."""
        import torch
        import torch.distributed as dist
        group = self.another_group(2)
        torch.cuda.synchronize()
        if self.rank == 0:
            begin = time.monotonic()
            x = self.full(1000, 1.0)
            work = dist.all_reduce(x, group=group, async_op=True)
            torch.cuda.synchronize()
            raises(dist.DistBackendError, "timed out", work.wait)
            raises(dist.DistBackendError, "timed out", lambda: dist.all_reduce(x, group=group))
            expect(not work.is_success(), "the work says that it succeeded")
            expect(1.5 < time.monotonic() - begin < 6, f"it took {time.monotonic() - begin:.1f} s")
        dist.barrier(self.group)
        self.check_first_call()

    def check_wait_with_a_timeout(self):
        import torch.distributed as dist
        group = self.another_group(5)
        if self.rank == 0:
            begin = time.monotonic()
            work = dist.all_reduce(self.full(1000, 1.0), group=group, async_op=True)
            raises(dist.DistBackendError, "Timed out waiting 700ms", lambda: work.wait(timedelta(milliseconds=700)))
            expect(time.monotonic() - begin < 5, f"it took {time.monotonic() - begin:.1f} s")
        dist.barrier(self.group)

    def check_ranks_that_disagree(self):
        """Sizes of a new asynchronous call are compared while it is in progress: it ends before the deadline."""
        import torch
        import torch.distributed as dist
        group = self.another_group(2)
        torch.cuda.synchronize()
        begin = time.monotonic()
        if self.rank == 0:
            work = dist.all_reduce(self.full(1 << 22, 1.0), group=group, async_op=True)
            torch.cuda.synchronize()
            raises(dist.DistBackendError, "", work.wait)
        else:
            dist.all_reduce(self.full(1, 1.0), group=group, async_op=True)
            torch.cuda.synchronize()
        expect(time.monotonic() - begin < 6, f"it took {time.monotonic() - begin:.1f} s")
        dist.barrier(self.group)

    def check_abort(self):
        import torch
        import torch.distributed as dist
        group = dist.new_group(backend=BACKEND, timeout=DEADLINE)
        Checks(group, self.rank, self.ranks).check_first_call()
        torch.cuda.synchronize()
        group._get_backend(torch.device("cuda")).abort()
        raises(dist.DistBackendError, "was aborted", lambda: dist.all_reduce(self.full(3, 1.0), group=group))
        dist.barrier(self.group)

    def check_destroy(self):
        """Groups that are destroyed leave no errors; tensors that they used outlive them."""
        import torch
        import torch.distributed as dist
        x = self.mine(1000)
        group = dist.new_group(backend=BACKEND, timeout=DEADLINE)
        work = dist.all_reduce(x, group=group, async_op=True)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        work.wait()
        del work
        gc.collect()
        equal(x, sum(self.of(r, 1000) for r in range(self.ranks)), "sum")
        del x
        torch.cuda.empty_cache()
        torch.cuda.synchronize()


NAMES = [name for name in vars(Checks) if name.startswith("check_")]
OF_TWO = {"check_" + name for name in ("rank_that_is_late", "wait_with_a_timeout", "ranks_that_disagree", "abort")}
AT_ONCE = ["first_call", "all_to_all", "messages", "stream_order", "async_work", "rank_that_is_late"]


def run_checks(names, rank, ranks, store):
    """Returns the number of those that fail on a rank."""
    import torch.distributed as dist
    group, failed = dist.new_group(backend=BACKEND, timeout=DEADLINE), 0
    for name in names:
        if ranks == 1 and name in OF_TWO:
            print(f"1 rank: {name[6:]}: skipped, it needs 2 ranks", flush=True)
            continue
        outcome, begin = "ok", time.monotonic()
        try:
            getattr(Checks(group, rank, ranks), name)()
        except BaseException:
            outcome = traceback.format_exc()
        took = time.monotonic() - begin
        store.set(f"outcome/{name}/{rank}", outcome)
        outcomes = [store.get(f"outcome/{name}/{r}").decode() for r in range(ranks)]
        if rank == 0:
            print(f"{ranks} rank{'s' * (ranks > 1)}: {name[6:]}: {'ok' if set(outcomes) == {'ok'} else 'FAILED'}, {took:.1f} s",
                  flush=True)
            for r, text in enumerate(outcomes):
                if text != "ok":
                    print(f"--- rank {r}\n{text}", flush=True)
        if set(outcomes) != {"ok"}:
            failed += 1
            group = dist.new_group(backend=BACKEND, timeout=DEADLINE)
    return failed


def run_timings(rank, ranks):
    import statistics
    import torch
    import torch.distributed as dist
    groups = {"distx": dist.new_group(backend=BACKEND, timeout=DEADLINE), "nccl": dist.new_group(backend="nccl")}
    for size, label, count in ((4, "4 B", 200), (1 << 20, "1 MiB", 50 if ranks == 1 else 20), (64 << 20, "64 MiB", 20 if ranks == 1 else 5)):
        x = torch.zeros(size // 4, device="cuda")
        whole, host = {name: [] for name in groups}, {name: [] for name in groups}
        for turn in range(5):
            for name, group in groups.items():
                dist.all_reduce(x, group=group)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(count):
                    dist.all_reduce(x, group=group)
                enqueued = time.perf_counter() - begin
                torch.cuda.synchronize()
                if turn > 0:
                    whole[name].append((time.perf_counter() - begin) / count * 1e6)
                    host[name].append(enqueued / count * 1e6)
        if rank == 0:
            print(f"{ranks} rank{'s' * (ranks > 1)}: all_reduce of {label}, us a call: " + "; ".join(
                f"{name} {statistics.median(whole[name]):.1f} (least {min(whole[name]):.1f}, host {statistics.median(host[name]):.1f})"
                for name in groups), flush=True)


def run_rank(options):
    """Runs one rank in this process."""
    global BACKEND
    faulthandler.dump_traceback_later(LIMIT - 10, exit=True)
    started = time.monotonic()
    sys.path.insert(0, options.build)
    import torch
    import torch.distributed as dist
    import distx_torch
    rank, ranks = options.rank, options.ranks[0]
    if not distx_torch._backend.has_cuda:
        print("FAILED: the extension was built without CUDA, though PyTorch has a GPU")
        return 1
    torch.cuda.set_device(0)
    begin = time.monotonic()
    store = dist.TCPStore("127.0.0.1", options.port, ranks, rank == 0, timeout=timedelta(seconds=60))
    try:
        dist.init_process_group(BACKEND, store=dist.PrefixStore("group", store), rank=rank, world_size=ranks, timeout=DEADLINE)
    except dist.DistBackendError:  # no memory that the ranks share, say: what is left can be checked for all that
        traceback.print_exc()
        BACKEND = "cuda:distx"
        dist.init_process_group(BACKEND, store=dist.PrefixStore("again", store), rank=rank, world_size=ranks, timeout=DEADLINE)
    if rank == 0:
        print(f"{ranks} rank{'s' * (ranks > 1)}: PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, NCCL "
              f"{'.'.join(map(str, torch.cuda.nccl.version()))}, init_process_group {time.monotonic() - begin:.1f} s", flush=True)
    failed = run_checks(options.checks if options.checks is not None else NAMES, rank, ranks, dist.PrefixStore("checks", store))
    if options.timings:
        try:
            run_timings(rank, ranks)
        except BaseException:
            traceback.print_exc()
            failed += 1
    begin = time.monotonic()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{ranks} rank{'s' * (ranks > 1)}: {failed} failed, destroy_process_group {time.monotonic() - begin:.1f} s, "
              f"all {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


def run_ranks(options, ranks, checks=None, more=None):
    """Returns whether all ranks end with status 0."""
    import socket
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[1:]), OMP_NUM_THREADS="1")
    environment.update(more or {})
    environment.setdefault("NCCL_DEBUG", "WARN")
    environment["NCCL_SOCKET_IFNAME"] = "lo"
    if ranks > 1:  # as tools/ranks --one-gpu
        environment.update(CUDA_DEVICE_MAX_CONNECTIONS="32", NCCL_MAX_NCHANNELS="2", NCCL_NET="Socket")
        for name in ("NCCL_COMM_ID", "NCCL_COMM_BLOCKING", "NCCL_LAUNCH_ORDER_IMPLICIT", "CUDA_LAUNCH_BLOCKING"):
            environment.pop(name, None)
    command = [sys.executable, os.path.abspath(__file__), "--build", options.build, "--ranks", str(ranks), "--port", str(port)]
    command += ["--timings"] if options.timings else []
    checks = options.checks if options.checks is not None else checks
    if checks is not None:
        command += ["--checks", *checks]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            own = dict(environment, NCCL_HOSTID=f"{os.path.basename(folder)}-{rank}") if ranks > 1 else environment
            log = open(os.path.join(folder, str(rank)), "w+") if rank > 0 else None
            processes.append((subprocess.Popen(command + ["--rank", str(rank)], env=own, stdout=log,
                                               stderr=subprocess.STDOUT if log else None), log))
        end, passed = time.monotonic() + LIMIT, True
        for rank, (process, log) in enumerate(processes):
            try:
                status = process.wait(max(1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            passed &= status == 0
            printed = ""
            if log:
                log.seek(0)
                printed = log.read()[-6000:]
                log.close()
            if status != 0 or printed:
                print(f"--- rank {rank} of {ranks} ended with status {status}\n{printed}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", metavar="FOLDER")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--checks", nargs="*")
    parser.add_argument("--timings", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.checks is not None:
        options.checks = [name if name.startswith("check_") else "check_" + name for name in options.checks]
    if options.rank is not None:
        return run_rank(options)
    reason = c10d.absent()
    if reason is None:
        import torch
        if not torch.cuda.is_available():
            reason = "PyTorch finds no GPU"
    if reason:
        print(f"skipped: {reason}")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        options.build = os.path.abspath(options.build or folder)
        begin = time.monotonic()
        c10d.build(options.build)
        print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
        passed = [run_ranks(options, ranks) for ranks in options.ranks]
        if options.timings:
            print("NCCL_RUNTIME_CONNECT=0", flush=True)
            passed += [run_ranks(options, ranks, AT_ONCE, {"NCCL_RUNTIME_CONNECT": "0"}) for ranks in options.ranks]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
