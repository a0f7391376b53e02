#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts programs on several hosts, which are made of namespaces.

    tests/hosts/several_hosts.py STEPS TRAIN_LENET [TEST...]        STEPS is tests/hosts/steps.cpp
    tests/hosts/several_hosts.py --mpich BUILD_FOLDER [TEST...]     builds both with MPICH, and starts them by its mpiexec
"""
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "hosts"), os.path.join(ROOT, "tests", "mpi")]
import mpich  # noqa: E402
import namespaces  # noqa: E402

DEADLINE = 3  # of steps.cpp
steps = train_lenet = None
waits_at_end = False
port = 29600


class Programs(unittest.TestCase):
    """Starts the two programs in several ways."""

    def setUp(self):
        self.hosts = None

    def tearDown(self):
        if self.hosts:
            self.hosts.close()

    def make(self, count):
        if self.hosts:
            self.hosts.close()
        self.hosts = namespaces.Hosts(count)

    def by_tcp(self, ranks_on, *words):
        """Starts one process a rank, connected by TCP; `ranks_on` has the host of each rank."""
        global port
        port += 1
        return [self.hosts.start(f"node{host}", *words, DISTX_CONNECT=f"tcp://node{ranks_on[0]}:{port}", DISTX_TOKEN="token",
                                 DISTX_RANK=str(rank), DISTX_SIZE=str(len(ranks_on)))
                for rank, host in enumerate(ranks_on)]

    def by_folder(self, ranks_on, *words):
        folder = os.path.join(self.hosts.folder, "meet")
        return [self.hosts.start(f"node{host}", *words, DISTX_FILE=folder, DISTX_RANK=str(rank), DISTX_SIZE=str(len(ranks_on)))
                for rank, host in enumerate(ranks_on)]

    def by_distx_run(self, hosts, *words):
        return [self.hosts.start("node1", os.path.join(ROOT, "tools", "run"), "--hosts", hosts, "--rsh", self.hosts.agent, *words)]

    def by_mpirun(self, slots, *words):
        """Starts Open MPI's mpirun on node1, with these slots on the hosts."""
        return [self.hosts.started(self.hosts.mpirun(slots, *words, OMPI_MCA_mpi_yield_when_idle=1))]

    def text_of(self, processes, seconds=40):
        done = self.hosts.finish(processes, seconds)
        text = "".join(text for _, text in done)
        self.assertEqual([status for status, _ in done], [0] * len(done), text)
        return text

    def where(self, processes):
        """Returns (local rank, local size) by rank, and the backend and the bits, which all ranks have in common."""
        text = self.text_of(processes)
        found = re.findall(r"rank (\d+) of \d+: local (\d+) of (\d+), (\S+), bits (\w+)", text)
        local = [(int(line[1]), int(line[2])) for line in sorted(found, key=lambda line: int(line[0]))]
        common = {line[3:] for line in found}
        self.assertEqual(len(common), 1, text)
        return local, *common.pop()

    def hash_of(self, processes):
        return re.search(r"\(weights (\w+)\)", self.text_of(processes)).group(1)

    def cut(self, start):
        """Pulls node2's cable once all four ranks, two on each host, make calls; returns their errors."""
        folder = os.path.join(self.hosts.folder, "errors")
        os.mkdir(folder)
        processes = start(folder)
        text, end = "", time.monotonic() + 30
        while text.count(" serves\n") < 4:
            ready, _, _ = select.select([process.stdout for process in processes], [], [], max(0, end - time.monotonic()))
            self.assertTrue(ready, f"the ranks did not start: {text}")
            for pipe in ready:
                text += os.read(pipe.fileno(), 65536).decode()
        self.hosts.link("node2", "down")
        end = time.monotonic() + 2 * DEADLINE
        while time.monotonic() < end and not all(os.path.exists(f"{folder}/{rank}") for rank in range(4)):
            time.sleep(0.05)
        self.hosts.crash()  # without a network, mpirun does not learn that the ranks of node2 have ended
        self.hosts.finish(processes, 10)
        return [pathlib.Path(folder, str(rank)).read_text(encoding="utf-8") for rank in range(4)]

    def assert_typed(self, errors):
        for error in errors:
            name, took, _ = error.split(" ", 2)
            self.assertIn(name, ("TimeoutError", "RankFailure", "RevokedError"))
            self.assertLess(float(took), DEADLINE + 2, error)


class SeveralHosts(Programs):
    def test_best_communicator(self):
        self.make(3)
        pairs = [(0, 2), (1, 2), (0, 2), (1, 2)]
        local, backend, bits = self.where(self.by_tcp([1, 1, 2, 2], steps))
        self.assertEqual((local, backend), (pairs, "shm+gloo"))
        self.assertEqual(self.where(self.by_folder([1, 1, 2, 2], steps)), (pairs, "shm+gloo", bits))
        self.assertEqual(self.where(self.by_distx_run("node1:2,node2:2", steps)), (pairs, "shm+gloo", bits))
        self.assertEqual(self.where(self.by_mpirun([2, 2], steps)), (pairs, "shm+mpi", bits))
        # Round robin: the ranks of a host are not consecutive.
        robin = [(0, 2), (0, 2), (1, 2), (1, 2)]
        self.assertEqual(self.where(self.by_tcp([1, 2, 1, 2], steps))[:2], (robin, "shm+gloo"))
        self.assertEqual(self.where(self.by_mpirun([2, 2], "--map-by", "node", steps))[:2], (robin, "shm+mpi"))
        # Hosts with different numbers of ranks, and with one each.
        uneven = [(0, 1), (0, 2), (1, 2), (0, 1)]
        self.assertEqual(self.where(self.by_tcp([1, 2, 2, 3], steps))[:2], (uneven, "shm+gloo"))
        self.assertEqual(self.where(self.by_mpirun([1, 2, 1], steps))[:2], (uneven, "shm+mpi"))
        self.assertEqual(self.where(self.by_tcp([1, 2, 3], steps))[:2], ([(0, 1)] * 3, "gloo"))
        self.assertEqual(self.where(self.by_mpirun([1, 1, 1], steps))[:2], ([(0, 1)] * 3, "mpi"))

    def test_training(self):
        """train_lenet itself checks that all ranks have the same weights."""
        self.make(3)
        train = (train_lenet, "--synthetic", "--epochs", "1", "--batch-size", "64", "--backend")
        gloo = self.hash_of(self.by_tcp([1, 1, 1, 1], *train, "gloo"))
        self.assertEqual(self.hash_of(self.by_tcp([1, 1, 2, 2], *train, "gloo")), gloo)
        self.assertEqual(self.hash_of(self.by_tcp([1, 2, 2, 3], *train, "gloo")), gloo)
        mpi = self.hash_of(self.by_mpirun([4], *train, "mpi"))
        self.assertEqual(self.hash_of(self.by_mpirun([2, 2], *train, "mpi")), mpi)
        best = self.hash_of(self.by_tcp([1, 1, 2, 2], *train, "best"))
        self.assertEqual(self.hash_of(self.by_mpirun([2, 2], *train, "best")), best)

    def test_link(self):
        """A link that goes down throws a typed error on every rank within the deadline."""
        for start in (self.by_tcp_in_pairs("gloo"), self.by_tcp_in_pairs("best"), self.by_mpirun_in_pairs("mpi"),
                      self.by_mpirun_in_pairs("best")):
            self.make(2)
            self.assert_typed(self.cut(start))

    def by_tcp_in_pairs(self, backend):
        return lambda folder: self.by_tcp([1, 1, 2, 2], steps, "serve", backend, folder)

    def by_mpirun_in_pairs(self, backend):
        return lambda folder: self.by_mpirun([2, 2], steps, "serve", backend, folder)


class HostsOfMpich(Programs):
    def by_mpiexec(self, slots, *words):
        """Starts MPICH's mpiexec on node1, with these slots on the hosts."""
        file = os.path.join(self.hosts.folder, "slots")
        with open(file, "w", encoding="ascii") as out:
            out.writelines(f"node{host + 1}:{count}\n" for host, count in enumerate(slots))
        self.last_lines = sum(slots) if words[0] == steps else 1
        return [self.hosts.start("node1", "mpiexec.mpich", "-n", sum(slots), "-f", file, "-launcher", "rsh", "-launcher-exec",
                                 self.hosts.agent, *words)]

    def text_of(self, processes, seconds=40):
        """Before 4.2, MPI_Finalize of MPICH over UCX may wait indefinitely on several hosts, also in programs without distx
        (pmodels/mpich#6596): programs that have written their last lines need not end."""
        if len(processes) > 1 or not waits_at_end:
            return super().text_of(processes, seconds)
        [process] = processes
        text, end = "", time.monotonic() + seconds
        while len(re.findall(r"bits \w+\n|\(weights \w+\)\n", text)) < self.last_lines:
            ready, _, _ = select.select([process.stdout], [], [], max(0, end - time.monotonic()))
            part = os.read(process.stdout.fileno(), 65536).decode() if ready else ""
            self.assertTrue(part, f"the ranks did not complete: {text}")
            text += part
        [(status, _)] = self.hosts.finish([process], 3)
        self.assertIn(status, (0, -signal.SIGKILL), text)
        return text

    def test_best_communicator(self):
        self.make(2)
        pairs = [(0, 2), (1, 2), (0, 2), (1, 2)]
        local, backend, bits = self.where(self.by_mpiexec([2, 2], steps))
        self.assertEqual((local, backend), (pairs, "shm+mpi"))
        self.assertEqual(self.where(self.by_tcp([1, 1, 2, 2], steps)), (pairs, "shm+gloo", bits))
        self.assertEqual(self.where(self.by_mpiexec([1, 1], steps))[:2], ([(0, 1)] * 2, "mpi"))

    def test_training(self):
        """Two hosts train to the weights of one."""
        self.make(2)
        train = (train_lenet, "--synthetic", "--epochs", "1", "--batch-size", "64", "--backend")
        mpi = self.hash_of(self.by_mpiexec([4], *train, "mpi"))
        self.assertEqual(self.hash_of(self.by_mpiexec([2, 2], *train, "mpi")), mpi)

    def test_link(self):
        """A link that goes down throws a typed error on every rank within the deadline."""
        self.make(2)
        self.assert_typed(self.cut(lambda folder: self.by_mpiexec([2, 2], steps, "serve", "mpi", folder)))


def build_with_mpich(folder):
    """Returns `steps` and `train_lenet`; the latter's sources are one translation unit, a third of the time."""
    examples = mpich.ROOT / "examples"
    shared = ("backend", "checkpoint_flags", "layer_training", "make_training", "mesh_flag", "training_flags", "training_report")
    union = pathlib.Path(folder, "mpich", "trainers.cpp")
    union.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f'#include "common/{name}.cpp"\n' for name in shared)
    if not union.exists() or union.read_text(encoding="utf-8") != text:
        union.write_text(text, encoding="utf-8")
    sources = [examples / "train_lenet.cpp", union]
    return (mpich.build(folder, "steps", [mpich.ROOT / "tests" / "hosts" / "steps.cpp"], modules=["gloo"], libraries=["-lgloo"]),
            mpich.build(folder, "train_lenet", sources, f"-I{examples}", f'-DSOURCE_ROOT="{ROOT}"', "-isystem", "/usr/include/eigen3",
                        modules=["checkpoint"], libraries=["-lfmt", "-lz", "-ldeflate"],
                        uses=[examples / "common" / f"{name}.cpp" for name in shared]))


if __name__ == "__main__":
    reason = namespaces.reason_against()
    if sys.argv[1] == "--mpich":
        steps, train_lenet = (None, None) if reason else build_with_mpich(sys.argv[2])
        waits_at_end = mpich.version() < (4, 2)
        tests = HostsOfMpich
    else:
        steps, train_lenet = (os.path.abspath(word) for word in sys.argv[1:3])
        known = subprocess.run([shutil.which("mpirun") or "false", "--version"], capture_output=True, text=True, check=False).stdout
        reason = reason or ("" if "Open MPI" in known or "OpenRTE" in known else "there is no mpirun of Open MPI")
        tests = SeveralHosts
    if reason:
        mpich.skip(reason)
    loader = unittest.defaultTestLoader
    loader.testNamePatterns = [f"*{word}*" for word in sys.argv[3:]] or None
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(loader.loadTestsFromTestCase(tests))
    sys.exit(0 if result.wasSuccessful() else 1)
