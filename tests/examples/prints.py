#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks that a command succeeds and prints exactly these lines.

    tests/examples/prints.py [--line TEXT]… -- COMMAND [ARGUMENT…]
"""
import argparse
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--line", action="append", default=[])
parser.add_argument("command", nargs="+")
options = parser.parse_args()
done = subprocess.run(options.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
print(done.stdout, end="", flush=True)
if done.returncode:
    sys.exit(done.returncode)
if done.stdout.splitlines() != options.line:
    sys.exit("expected these lines:\n" + "\n".join(options.line))
