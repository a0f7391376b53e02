#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures the compile time of `#include <distx/distx.hpp>`: the least processor time of several tries.

    benchmarks/compile_time.py [--compiler g++] [--header distx/distx.hpp] [--limit 1.5] [--tries 5]

The status is 1 if it exceeds the limit. An empty file and a file that redistributes and multiplies tensors on a mesh are
measured too; the latter has the limit --tensor-limit.
"""
import argparse
import os
import resource
import subprocess
import sys

TENSORS = """#include <distx/distx.hpp>
#include <distx/tensor/ops.hpp>
struct Data {};
struct Model {};
int main() {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  const distx::Mesh<Data, Model> mesh(comm, {1, 1});
  const auto x = distx::random<float, distx::Shard<0, Data>>(mesh, {4, 6}, 1);
  const auto w1 = distx::random<float, distx::Shard<1, Model>>(mesh, {6, 8}, 2);
  const auto w2 = distx::random<float, distx::Shard<1, Model>>(mesh, {8, 6}, 3);
  const auto h = distx::relu(distx::matmul(x, w1));
  const auto y = distx::matmul(h, distx::redistribute<distx::Shard<0, Model>>(w2));
  return distx::redistribute<distx::Shard<0, Data>>(y).extent(0) == 4 ? 0 : 1;
}
"""
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def seconds(compiler, text):
    command = [compiler, "-std=c++20", "-O0", "-I", os.path.join(ROOT, "include"), "-x", "c++", "-", "-c", "-o", os.devnull]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input=text, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--header", default="distx/distx.hpp")
    parser.add_argument("--limit", type=float, default=1.5)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--tensor-limit", type=float, default=4)
    options = parser.parse_args()
    measured = {}
    tensors = "two layers on a mesh"
    texts = {"an empty file": "int main() {}\n",
             options.header: f"#include <{options.header}>\nint main() {{}}\n", tensors: TENSORS}
    for name, text in texts.items():
        measured[name] = min(seconds(options.compiler, text) for _ in range(options.tries))
        print(f"{name}: {measured[name]:.2f} s ({options.compiler} -O0)")
    if measured[options.header] > options.limit:
        print(f"{options.header} costs {measured[options.header]:.2f} s, and {options.limit:g} s is the most")
        return 1
    if measured[tensors] > options.tensor_limit:
        print(f"{tensors} cost {measured[tensors]:.2f} s, and {options.tensor_limit:g} s is the most")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
