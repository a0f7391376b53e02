# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs the ranks of a benchmark's program, and those of a script with PyTorch, on one thread each."""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ONE_THREAD = dict(os.environ, OMP_NUM_THREADS="1")


def run_program(build, name, ranks, *arguments):
    """What a program of benchmarks/ prints on so many ranks."""
    command = [sys.executable, os.path.join(ROOT, "tools", "run"), "-n", str(ranks), os.path.join(build, "benchmarks", name), *arguments]
    return subprocess.run(command, env=ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True).stdout


def run_script(script, ranks, *arguments):
    """What rank 0 of a script prints, whose ranks are given `--rank RANK STORE`, the file in which they meet."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, script, *arguments, "--rank"]
        others = [subprocess.Popen([*command, str(rank), folder + "/store"], env=ONE_THREAD) for rank in range(1, ranks)]
        try:
            printed = subprocess.run([*command, "0", folder + "/store"], env=ONE_THREAD, stdout=subprocess.PIPE, text=True, check=True).stdout
            if any([other.wait() for other in others]):
                sys.exit(f"a rank of {script} has failed")
        finally:
            for other in others:
                other.kill()
    return printed
