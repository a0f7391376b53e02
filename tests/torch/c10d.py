#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs PyTorch's own tests of torch.distributed on the backend of python/, and on Gloo for comparison.

    tests/torch/c10d.py [--build FOLDER] [--ranks 2] [--tests NAME…] [--backends distx gloo] [--verbose]

Builds the extension into FOLDER, by default a temporary one, then runs every test of `DistributedTest._DistTestBase` that Gloo runs on CPU tensors.
Status 1 if one fails that is not in EXCLUDED, or one of this file; 77 without PyTorch. Each test is two forked
processes and a process group of their own.
"""
import argparse
import functools
import itertools
import multiprocessing
import os
import re
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
import types

# Before PyTorch is loaded. torch.set_num_threads would make a pool of threads, which a forked process does not have.
os.environ["OMP_NUM_THREADS"] = "1"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 90  # seconds for one test
AT_ONCE = 2  # tests; their ranks wait for each other most of the time
# Tests that only Gloo can pass, with the reason.
EXCLUDED = {
    "test_ddp_logging_data_cpu": "expects the backend's own name in a log in which PyTorch calls it 'custom'",
}


class BackendName(str):
    """The name of the backend, where the tests ask at run time whether it is Gloo: what they then do holds for both."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    __hash__ = str.__hash__


def absent():
    """Returns what the extension cannot be built without, or None."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return str(error)
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "Python's headers are absent; install python3-dev"
    return None


def build(folder):
    """Builds distx_torch into a folder. The compiler runs only if a source is newer."""
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", folder, "--build-lib", folder]
    environment = dict(os.environ, MAX_JOBS="2", PYTHONPATH=os.pathsep.join(sys.path[1:]))
    done = subprocess.run(command, cwd=os.path.join(ROOT, "python"), env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    for line in done.stdout.splitlines():
        if line.startswith("distx_torch: "):  # what it is built without, and why
            print(line, flush=True)


def load():
    """PyTorch's module of tests, which decides by the name of the backend what to run: as Gloo."""
    if "expecttest" not in sys.modules:
        import unittest
        stub = types.ModuleType("expecttest")  # of which these tests use the base class only
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    os.environ.update(BACKEND="gloo", INIT_METHOD="file:///dev/null")
    import torch.testing._internal.distributed.distributed_test as module
    for known in module.DistTestCases.backend_feature.values():
        if "gloo" in known:
            known.add("distx")
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, name).append("distx")
    return module


class Own:
    """What PyTorch's tests do not ask of a backend. Run on 2 ranks and more, on distx only."""

    def test_distx_types_and_ops(self):
        import torch
        import torch.distributed as dist
        ranks, rank = dist.get_world_size(), dist.get_rank()
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int16,
                      torch.int32, torch.int64, torch.complex64, torch.complex128):
            x = torch.full((5,), rank + 1, dtype=dtype)
            dist.all_reduce(x)
            self.assertEqual(x, torch.full((5,), ranks * (ranks + 1) // 2, dtype=dtype))
        for op, expected in ((dist.ReduceOp.SUM, True), (dist.ReduceOp.PRODUCT, False), (dist.ReduceOp.MAX, True),
                             (dist.ReduceOp.BAND, False), (dist.ReduceOp.BOR, True)):
            x = torch.tensor([rank == 0])
            dist.all_reduce(x, op)
            self.assertEqual(x.view(torch.uint8), torch.tensor([int(expected)], dtype=torch.uint8))
        bits = [1 << r | 1 << 9 for r in range(ranks)]
        for op, f in ((dist.ReduceOp.BAND, int.__and__), (dist.ReduceOp.BOR, int.__or__), (dist.ReduceOp.BXOR, int.__xor__)):
            x = torch.tensor(bits[rank])
            dist.all_reduce(x, op)
            self.assertEqual(x.item(), functools.reduce(f, bits))
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, dist.ReduceOp.AVG)
        self.assertEqual(x, torch.full((3,), (ranks - 1) / 2))
        x = torch.full((3,), float(rank))
        dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
        self.assertEqual(x, torch.full((3,), float(ranks * (ranks - 1))))
        with self.assertRaisesRegex(ValueError, "average does not reduce elements of type int64"):
            dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG)
        with self.assertRaisesRegex(ValueError, "bit_or does not reduce elements of type float32"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BOR)
        dist.barrier()  # neither has ended the group

    def test_distx_strides(self):
        import torch
        import torch.distributed as dist
        ranks, rank = dist.get_world_size(), dist.get_rank()
        wide = torch.full((4, 6), float(rank))
        x = wide[:, ::2]
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((4, 3), ranks * (ranks - 1) / 2))
        self.assertEqual(wide[:, 1::2], torch.full((4, 3), float(rank)))
        y = torch.arange(6.0).view(2, 3).t() if rank == 0 else torch.zeros(3, 2)
        dist.broadcast(y, 0)
        self.assertEqual(y, torch.arange(6.0).view(2, 3).t())
        out = [torch.zeros(2, 3).t() for _ in range(ranks)]
        dist.all_gather(out, y + rank)
        self.assertEqual(torch.stack(out), torch.stack([y + r for r in range(ranks)]))
        if rank == 0:
            dist.send(y, 1)
        if rank == 1:
            z = torch.zeros(2, 3).t()
            dist.recv(z, 0)
            self.assertEqual(z, y)

    def test_distx_messages_pass_collectives_in_flight(self):
        import torch
        import torch.distributed as dist
        rank, x, message = dist.get_rank(), torch.ones(1000), torch.full((1 << 18,), 3.0)
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            dist.send(message, 1)
        else:
            if rank == 1:
                dist.recv(message.zero_(), 0)
            work = dist.all_reduce(x, async_op=True)
        future = work.get_future().then(lambda f: f.value()[0] * 2)
        work.wait()
        self.assertEqual(future.wait(), torch.full((1000,), 2.0 * dist.get_world_size()))
        self.assertEqual(message, torch.full((1 << 18,), 3.0))

    def test_distx_ranks_that_disagree(self):
        import torch
        import torch.distributed as dist
        group, other = dist.new_group(), dist.new_group()
        with self.assertRaisesRegex(dist.DistBackendError, "passes . elements, this rank ."):
            dist.all_reduce(torch.ones(3 + (dist.get_rank() == 0)), group=group)
        with self.assertRaises(dist.DistBackendError):
            dist.barrier(group)
        dist.barrier(other)  # only that group has ended

    def test_distx_timeouts_and_abort(self):
        import torch
        import torch.distributed as dist
        from datetime import timedelta
        short, long, aborted = dist.new_group(timeout=timedelta(seconds=1)), dist.new_group(), dist.new_group()
        rank = dist.get_rank()
        if rank == 0:
            with self.assertRaisesRegex(dist.DistBackendError, "did not join.*timeout is 1000 ms"):
                dist.all_reduce(torch.ones(3), group=short)
            work = dist.all_reduce(torch.ones(3), group=long, async_op=True)
            with self.assertRaisesRegex(dist.DistBackendError, "Timed out waiting 300ms"):
                work.wait(timedelta(milliseconds=300))
            dist.barrier()
            with self.assertRaisesRegex(dist.DistBackendError, "was aborted"):
                dist.all_reduce(torch.ones(3), group=aborted)
        else:
            dist.barrier()
            if rank == 1:
                aborted._get_backend(torch.device("cpu")).abort()

    def test_distx_tensors_on_meshes(self):
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
        ranks = dist.get_world_size()
        whole = ranks * torch.arange(35.0).view(5, 7)  # of which a partial sum is a whole number

        def check(tensor, placements):
            self.assertEqual(tensor.placements, placements)
            self.assertTrue(torch.equal(tensor.full_tensor(), whole), f"{placements} on {tensor.device_mesh}")

        for mesh in meshes(ranks):
            stored = list(itertools.product((Shard(0), Shard(1), Replicate()), repeat=mesh.ndim))
            for before, after in itertools.product(stored, stored):
                there = distribute_tensor(whole, mesh, before).redistribute(placements=after)
                check(there, after)
                check(there.redistribute(placements=before), before)
            sums = (Partial(),) * mesh.ndim
            for after in stored:
                check(DTensor.from_local(whole / ranks, mesh, sums).redistribute(placements=after), after)
                if Replicate() not in after:  # PyTorch has Partial from shards only
                    there = distribute_tensor(whole, mesh, after).redistribute(placements=sums)
                    check(there, sums)
                    check(there.redistribute(placements=after), after)

    def test_distx_sharded_training(self):
        """FSDP2 on a mesh of one axis, and on one of replicas and shards, trains as one process on all batches does."""
        import copy
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        ranks, rank = dist.get_world_size(), dist.get_rank()
        for mesh in meshes(ranks):
            torch.manual_seed(3)
            alone = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1)).double()
            sharded = copy.deepcopy(alone)
            for layer in (sharded[0], sharded[2], sharded):
                fully_shard(layer, mesh=mesh)
            trainings = [(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)) for model in (alone, sharded)]
            for _ in range(5):
                batch = torch.randn(2 * ranks, 6, dtype=torch.float64)
                for (model, optimizer), inputs in zip(trainings, (batch, batch[2 * rank:2 * rank + 2])):
                    optimizer.zero_grad()
                    model(inputs).square().mean().backward()
                    optimizer.step()
            weights = list(zip(sharded.parameters(), alone.parameters()))
            self.assertLess(sum(there.to_local().numel() for there, _ in weights), sum(here.numel() for _, here in weights))
            for there, here in weights:
                self.assertEqual(there.full_tensor().detach(), here.detach(), atol=1e-14, rtol=1e-12)


def meshes(ranks):
    """All ranks on one axis and, of an even number, on two."""
    from torch.distributed.device_mesh import init_device_mesh
    return [init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape):])
            for shape in [(ranks,), (ranks // 2, 2)][:2 - ranks % 2]]


def run_rank(module, suite, name, backend, rank, ranks, folder):
    """Runs one test on one rank, in a separate process, which ends with the status of PyTorch's runner."""
    import unittest
    from datetime import timedelta
    import torch.distributed as dist
    from torch.testing._internal import common_utils
    with open(os.path.join(folder, f"log{rank}"), "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    module.BACKEND = BackendName(backend)
    module.INIT_METHOD = f"file://{folder}/again"
    os.environ.update(TEMP_DIR=folder, RANK=str(rank))
    try:
        if backend == "distx":
            import distx_torch  # noqa: F401
        case = suite(name)
        case.rank = rank
        case.file_name = os.path.join(folder, "store")
        seconds = module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)
        dist.init_process_group(backend, init_method=case.init_method, rank=rank, world_size=ranks,
                                timeout=timedelta(seconds=seconds))
        case._barrier()
        common_utils.set_rng_seed()
        try:
            getattr(case, name)()
        except unittest.SkipTest:
            return 86
        case._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
        return 0
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run_test(module, suite, name, backend, ranks):
    """("passed", "skipped" or "failed", what the ranks printed)"""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir"):
            os.mkdir(os.path.join(folder, part))
        open(os.path.join(folder, "barrier.lock"), "w").close()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]))
        children = {}
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = run_rank(module, suite, name, backend, rank, ranks, folder)
                finally:
                    os._exit(status if isinstance(status, int) else 1)
            children[pid] = rank
        statuses = {}
        ended = {os.pidfd_open(pid): pid for pid in children}
        end = time.monotonic() + LIMIT
        while ended:
            ready, _, _ = select.select(list(ended), [], [], max(0, end - time.monotonic()))
            if not ready:
                for descriptor in ended:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                end = time.monotonic() + LIMIT
            for descriptor in ready:
                pid = ended.pop(descriptor)
                statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(descriptor)
        printed = ""
        for rank in range(ranks):
            with open(os.path.join(folder, f"log{rank}"), errors="replace") as log:
                printed += f"--- rank {rank}\n{log.read()[-4000:]}\n"
    printed += f"statuses {[statuses[pid] for pid in children]}"
    codes = set(statuses.values())
    if codes == {0}:
        return "passed", printed
    skips = {skip.exit_code for skip in module.TEST_SKIPS.values()}
    return "skipped" if codes <= skips | {0} else "failed", printed


class Job:
    """What the processes that run tests inherit."""


def run_on_backends(name):
    """[(name, backend, outcome, what the ranks printed, seconds)], up to the first backend that skips the test."""
    found = []
    for backend in Job.backends:
        if backend == "distx" and name in EXCLUDED or backend != "distx" and name in Job.own:
            continue
        began = time.monotonic()
        outcome, printed = run_test(Job.module, Job.suite, name, backend, Job.ranks)
        found.append((name, backend, outcome, printed, time.monotonic() - began))
        if outcome == "skipped":
            break
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tests", nargs="+")
    parser.add_argument("--backends", nargs="+", default=["distx", "gloo"])
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if reason := absent():
        print(f"skipped: {reason}")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        return run(options, os.path.abspath(options.build or folder))


def run(options, folder):
    began = time.monotonic()
    build(folder)
    sys.path.insert(1, folder)
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    failed, ranks = False, options.ranks
    os.environ["WORLD_SIZE"] = str(ranks)
    module = load()

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase, Own):
        pass

    own = [name for name in dir(Own) if name.startswith("test_")]
    names = options.tests or own + [name for name in sorted(dir(Suite)) if name.startswith("test_") and name not in own]
    # PyTorch runs those of all_to_all on CPU tensors under MPI only, though Gloo has it as well.
    names = [name for name in names if not getattr(getattr(Suite, name), "__unittest_skip__", False)
             or name.startswith("test_all_to_all") and "cuda" not in name]
    passed, ran, errors = {backend: set() for backend in options.backends}, set(), []
    Job.module, Job.suite, Job.backends, Job.ranks, Job.own = module, Suite, options.backends, ranks, own
    with multiprocessing.get_context("fork").Pool(AT_ONCE) as pool:
        for name, backend, outcome, printed, seconds in itertools.chain.from_iterable(pool.imap(run_on_backends, names)):
            if outcome == "skipped":
                if options.verbose:
                    print(f"{name}, {backend}: skipped")
                continue
            if name in own:
                failed |= outcome != "passed"
            else:
                ran.add(name)
            if outcome == "passed":
                passed[backend].add(name)
            if options.verbose or outcome == "failed":
                print(f"{name}, {backend}: {outcome} in {seconds:.1f} s", flush=True)
            if outcome == "failed" and (backend == "distx" or options.verbose):
                print(printed, flush=True)
                raised = [line for line in printed.splitlines() if re.match(r"[\w.]*(Error|Exception|statuses)\b", line)]
                errors.append(f"failed: {name}: {' | '.join(raised)[:400]}")
    both = "; ".join(f"{backend} {len(passed[backend] & ran)} of {len(ran)}" for backend in options.backends)
    print(f"{ranks} ranks: {both}", flush=True)
    for name in sorted(ran & set(EXCLUDED)):
        print(f"{name} is not run on distx: it {EXCLUDED[name]}")
    for error in errors:  # last, as the end of what is printed is kept
        print(error)
    failed |= bool(ran - passed.get("distx", ran) - set(EXCLUDED))
    if not options.tests and len(ran) < 90:
        print("there are at least 90 tests in PyTorch 2.15")
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
