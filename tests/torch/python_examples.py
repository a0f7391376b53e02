#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""examples/python/ddp.py and fsdp.py learn with Gloo's losses, also where fsdp.py continues on more ranks.

    tests/torch/python_examples.py BUILD DIGITS

BUILD is the folder that c10d.py builds the extension into, DIGITS is what tools/digits has written.
"""
import os
import subprocess
import sys
import tempfile

import c10d

EPOCHS = "6"
FAR = 1e-4  # between losses with distx and with Gloo, relative; 4 ranks round otherwise than 2
ACCURACY = {"ddp": 0.85, "fsdp": 0.80}


def train(build, digits, name, ranks, *more):
    """([loss of each epoch], accuracy)"""
    script = os.path.join(c10d.ROOT, "examples", "python", name + ".py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), script,
               "--digits", digits, *more]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join([build] + sys.path[1:]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    # A thread of Gloo's may release a tensor while its process ends, and then ends it by an abort.
    gloo_aborted = "gloo" in more and done.stdout.count("accuracy") == 1
    if done.returncode and not gloo_aborted:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    printed = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    return printed[:-1], printed[-1]


def main():
    build, digits = (os.path.abspath(path) for path in sys.argv[1:])
    reason = c10d.absent() or (None if os.path.exists(digits) else f"{digits} does not exist; fetch it with tools/digits")
    if reason:
        print(f"skipped: {reason}")
        return 77
    c10d.build(build)
    with tempfile.TemporaryDirectory() as folder:
        saved = ["--checkpoint", os.path.join(folder, "digits")]
        first, _ = train(build, digits, "fsdp", 2, "--epochs", "3", *saved)
        rest, accuracy = train(build, digits, "fsdp", 4, "--epochs", EPOCHS, *saved)
    found = {"ddp": train(build, digits, "ddp", 2, "--epochs", EPOCHS), "fsdp": (first + rest, accuracy)}
    failed = False
    for name, (losses, accuracy) in found.items():
        expected, _ = train(build, digits, name, 2, "--epochs", EPOCHS, "--backend", "gloo")
        far = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
        print(f"{name}: losses {losses}, {far:.1e} from Gloo's (at most {FAR:.0e}), accuracy {accuracy} "
              f"(at least {ACCURACY[name]})", flush=True)
        failed |= far > FAR or accuracy < ACCURACY[name] or losses[-1] > losses[0] / 5
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
