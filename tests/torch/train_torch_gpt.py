#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""examples/torch/train_torch_gpt learns, at all stages with the same bits, and on two ranks as on one.

    tests/torch/train_torch_gpt.py RUN PROGRAM
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXT = os.path.join(ROOT, "docs", "design_failure.md")  # prose, in which the end is like the beginning
STEPS, BATCH = 200, 8
FAR = 1e-5  # between the losses of one rank and of two, relative
LEARNT = 2.7  # nats a character; all equally likely have 4.5


def losses(ranks, stage, steps):
    run, program = sys.argv[1:]
    command = [sys.executable, run, "-n", str(ranks), program, "--zero", str(stage), "--steps", str(steps), "--batch",
               str(BATCH // ranks), "--text", TEXT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    found = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    if len(found) != steps + 1:
        raise SystemExit(f"{' '.join(command)} printed {len(found)} losses\n{done.stdout}")
    return found


def main():
    failed = False
    few = {}
    for ranks in (1, 2):
        stages = [losses(ranks, stage, 20) for stage in range(4)]
        few[ranks] = stages[0]
        same = all(each == stages[0] for each in stages)
        print(f"{ranks} ranks: stages 0 to 3 {'have the same bits' if same else 'DIFFER'}", flush=True)
        failed |= not same
    far = max(abs(a - b) / a for a, b in zip(few[1], few[2], strict=True))
    learnt = losses(2, 3, STEPS)
    print(f"one rank and two differ by {far:.1e} (at most {FAR:.0e})")
    print(f"the loss falls from {learnt[0]:.3f} to {learnt[-2]:.3f}, {learnt[-1]:.3f} on text that was held out "
          f"(below {LEARNT})")
    failed |= far > FAR or not max(learnt[-2:]) < LEARNT < 4 < learnt[0]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
