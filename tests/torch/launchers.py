#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Two ranks of an example print the same under distx-run, mpirun and torchrun.

    tests/torch/launchers.py PROGRAM [ARGUMENT…]

mpirun and torchrun are left out where they are absent.
"""
import importlib.util
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WAYS = {
    "distx-run": [sys.executable, os.path.join(ROOT, "tools", "run"), "-n", "2"],
    "mpirun": [sys.executable, os.path.join(ROOT, "tests", "mpirun"), "2"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"],
}


def main():
    printed = {}
    for name, way in WAYS.items():
        if name == "torchrun" and not importlib.util.find_spec("torch"):
            print("torchrun is absent: install PyPI's torch")
            continue
        done = subprocess.run(way + sys.argv[1:], capture_output=True, text=True, timeout=300, check=False,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        if name == "mpirun" and done.returncode == 77:
            print(done.stdout)
            continue
        if done.returncode:
            raise SystemExit(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
        printed[name] = done.stdout
        print(f"{name}: {done.stdout.splitlines()[-1]}", flush=True)
    return 0 if len(set(printed.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
