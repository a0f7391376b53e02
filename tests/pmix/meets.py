#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts a program without MPI by Open MPI's mpirun, which connects it by PMIx.

    tests/pmix/meets.py PROGRAM       PROGRAM is tests/pmix/meets.cpp
"""
import os
import shutil
import subprocess
import sys
import unittest

MPIRUN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mpirun")
program = None


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISTX_", "PMIX_"))}
    return dict(kept, **variables)


def run(ranks, *arguments, **variables):
    return subprocess.run([MPIRUN, str(ranks), program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env=environment(**variables), timeout=100)


class Meeting(unittest.TestCase):
    def test_laws(self):
        for size in (1, 2, 3, 4, 7):
            done = run(size, "laws", *(["tcp"] if size > 1 else []))
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_two_hundred_ranks(self):
        self.assertEqual(run(200, "meets", "tcp").returncode, 0)

    def test_log(self):
        for variables in ({}, {"DISTX_CONNECT": "pmix://"}):
            done = run(2, "meets", "tcp", DISTX_LOG="info", **variables)
            self.assertIn("distx: connect: launcher 'pmix' (", done.stderr)
            self.assertIn("), 2 ranks, 2 on this host\n", done.stderr)

    def test_a_rank_that_throws(self):
        done = run(3, "throws", "tcp")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("as it should", done.stderr)

    def test_without_a_launcher(self):
        done = subprocess.run([program, "meets"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              env=environment(DISTX_CONNECT="pmix://"), timeout=100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("distx: connect (pmix): PMIx_Init failed: ", done.stderr)


if __name__ == "__main__":
    program = os.path.abspath(sys.argv[1])
    known = subprocess.run([shutil.which("mpirun") or "false", "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in known and "OpenRTE" not in known:
        print("skipped: there is no mpirun of Open MPI")
        sys.exit(77)
    loaded = unittest.defaultTestLoader.loadTestsFromTestCase(Meeting)
    sys.exit(0 if unittest.TextTestRunner(sys.stdout, verbosity=2).run(loaded).wasSuccessful() else 1)
