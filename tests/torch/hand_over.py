#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A module that C++ has trained at stage 3 computes the same after its checkpoint is loaded in C++ and in Python.

    tests/torch/hand_over.py HAND_OVER
"""
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn as nn
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}; install PyPI's torch and safetensors")
    sys.exit(77)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 3)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))


def main():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.argv[1], folder], capture_output=True, text=True, timeout=120, check=False)
        print(done.stdout, done.stderr)
        if done.returncode:
            return 1
        printed = {line.split()[0]: [float(number) for number in line.split()[1:]] for line in done.stdout.splitlines()}
        net = Net()
        net.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
    net.eval()
    images = torch.sin(torch.arange(512, dtype=torch.float32) * 10).view(8, 1, 8, 8)
    with torch.no_grad():
        here = net(images).flatten().tolist()
    far = max(abs(a - b) for a, b in zip(here, printed["trained"], strict=True))
    print(f"Python's outputs differ by at most {far:.1e}")
    return 0 if far < 1e-5 and printed["loaded"] == printed["trained"] and len(here) == 24 else 1


if __name__ == "__main__":
    sys.exit(main())
