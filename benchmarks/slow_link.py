#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs benchmarks/slow_link on two hosts made of namespaces, with a link of 1 Gbit/s between them; needs root.

    benchmarks/slow_link.py build/benchmarks/slow_link [--megabits N] [--backend gloo] [WORD...]
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "hosts"))
import namespaces  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--megabits", type=int, default=1000)
options, words = parser.parse_known_args()
reason = namespaces.reason_against()
if reason:
    sys.exit(f"skipped: {reason}")
hosts = namespaces.Hosts(2, options.megabits)
try:
    started = hosts.started(hosts.mpirun([1, 1], os.path.abspath(options.program), *words, OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,tcp"))
    [(status, text)] = hosts.finish([started], 300)
    print(text, end="")
finally:
    hosts.close()
sys.exit(status)
