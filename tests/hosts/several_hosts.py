#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts programs on several hosts, which are made of namespaces.

    tests/hosts/several_hosts.py STEPS TRAIN_LENET [TEST...]       STEPS is tests/hosts/steps.cpp
"""
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import namespaces  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEADLINE = 3  # of steps.cpp
steps = train_lenet = None
port = 29600


class SeveralHosts(unittest.TestCase):
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
        file = os.path.join(self.hosts.folder, "slots")
        with open(file, "w", encoding="ascii") as out:
            out.writelines(f"node{host + 1} slots={count}\n" for host, count in enumerate(slots))
        return [self.hosts.start("node1", "mpirun", "-np", sum(slots), "--hostfile", file, "--mca", "plm_rsh_agent",
                                 self.hosts.agent, "--bind-to", "none", *words, OMPI_ALLOW_RUN_AS_ROOT="1",
                                 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1", TERM="dumb")]

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

    def hash_of(self, processes):
        return re.search(r"\(weights (\w+)\)", self.text_of(processes)).group(1)

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

    def test_link(self):
        """A link that goes down throws a typed error on every rank within the deadline."""
        for start in (self.by_tcp_in_pairs("gloo"), self.by_tcp_in_pairs("best"), self.by_mpirun_in_pairs("mpi"),
                      self.by_mpirun_in_pairs("best")):
            self.make(2)
            for error in self.cut(start):
                name, took, _ = error.split(" ", 2)
                self.assertIn(name, ("TimeoutError", "RankFailure", "RevokedError"))
                self.assertLess(float(took), DEADLINE + 2, error)

    def by_tcp_in_pairs(self, backend):
        return lambda folder: self.by_tcp([1, 1, 2, 2], steps, "serve", backend, folder)

    def by_mpirun_in_pairs(self, backend):
        return lambda folder: self.by_mpirun([2, 2], steps, "serve", backend, folder)


if __name__ == "__main__":
    steps, train_lenet = (os.path.abspath(word) for word in sys.argv[1:3])
    known = subprocess.run([shutil.which("mpirun") or "false", "--version"], capture_output=True, text=True, check=False).stdout
    reason = namespaces.reason_against() or ("" if "Open MPI" in known or "OpenRTE" in known else "there is no mpirun of Open MPI")
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    loader = unittest.defaultTestLoader
    loader.testNamePatterns = [f"*{word}*" for word in sys.argv[3:]] or None
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(loader.loadTestsFromTestCase(SeveralHosts))
    sys.exit(0 if result.wasSuccessful() else 1)
