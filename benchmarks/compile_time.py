#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Measures what distx costs a compiler: user seconds, the median of several runs in turn.

    benchmarks/compile_time.py [--compiler g++ --compiler clang++-16] [--runs 5] [--only README] [--limits] [--trace]

The README program is the first block of README.md. With --limits the status is 1 where a row exceeds its limit for g++, which holds
on a quiet machine. With --trace (clang) the headers and the templates that take longest are printed for each row.
"""
import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import compilers  # noqa: E402

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
  const auto h = distx::ops::relu(distx::ops::matmul(x, w1));
  const auto y = distx::ops::matmul(h, distx::redistribute<distx::Shard<0, Model>>(w2));
  return distx::redistribute<distx::Shard<0, Data>>(y).extent(0) == 4 ? 0 : 1;
}
"""
SUM = """#include <distx/comm.hpp>
#include <distx/threads.hpp>
int main() {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  float x[] = {1, 2};
  distx::all_reduce(comm, x, distx::sum);
}
"""
SAVE = """#include <distx/checkpoint.hpp>
void save(distx::DataParallel<distx::ZeRO<0>>& training) { distx::checkpoint::save("checkpoints", training, {.step = 1}); }
"""
GPU = """#include <distx/distx.hpp>
#include <distx/cuda.hpp>
#include <distx/mpi.hpp>
#include <distx/nccl.hpp>
int main(int argc, char** argv) {
  auto connector = distx::connect(argc, argv);
  distx::cuda::pick_device(connector);
  distx::NcclCommunicator comm(connector);
  std::vector<distx::Parameter<float, distx::Cuda>> parameters;
  parameters.emplace_back("weight", 1000);
  distx::DataParallel<distx::ZeRO<2>, distx::On<distx::Cuda>> training(comm, parameters, distx::AdamW{});
  for (int step = 0; step < 300; ++step) {
    (void)training.gradient(parameters[0]);
    training.ready(parameters[0]);
    training.step({.learning_rate = 0.1});
  }
}
"""
COMPILED = "-DDISTX_COMPILED=extern"
CUDA = "/usr/local/cuda/include"


def readme_program():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as page:
        return re.search(r"^```cpp\n(.*?)^```", page.read(), re.MULTILINE | re.DOTALL).group(1)


def rows(mpi_flags):
    """Yields (name, text, flags, limit in seconds or None)."""
    yield "an empty program", "int main() {}\n", [], None
    for header, limit in (("comm", 0.7), ("threads", None), ("training", None), ("tensor", None), ("distx", None), ("shm", None)):
        yield f"#include <distx/{header}.hpp>", f"#include <distx/{header}.hpp>\n", ["-O0"], limit
    yield "all_reduce on one rank, -O0", SUM, ["-O0"], None
    yield "two layers on a mesh, -O0", TENSORS, ["-O0"], None
    if mpi_flags is not None:
        text = readme_program()
        yield "README program, -O0", text, [*mpi_flags, "-O0"], 3
        yield "README program, -O2", text, [*mpi_flags, "-O2"], 6
        for level in ("-O0", "-O2"):
            yield f"README program, compiled form, {level}", text, [*mpi_flags, level, COMPILED], None
        yield "README program that saves, compiled form, -O0", text + SAVE, [*mpi_flags, "-O0", COMPILED], 2.5
        if os.path.exists(os.path.join(CUDA, "nccl.h")) or os.path.exists("/usr/include/nccl.h"):
            yield "training on GPUs, compiled form, -O0", GPU, [*mpi_flags, "-isystem", CUDA, "-O0", COMPILED], 3


def mpi_flags():
    for name in ("ompi-c", "mpi-c", "mpich"):
        done = subprocess.run(["pkg-config", "--cflags", name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", *done.stdout.replace("-I", "-isystem").split()]
    return None


def command(compiler, flags, target):
    return [compiler, "-std=c++20", "-I", os.path.join(ROOT, "include"), "-pthread", *flags, "-x", "c++", "-", "-c", "-o", target]


def seconds(compiler, text, flags):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command(compiler, flags, os.devnull), input=text, text=True, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def lines_of(text, flags):
    """The preprocessed lines that are not empty."""
    done = subprocess.run(["g++", "-std=c++20", "-I", os.path.join(ROOT, "include"), *flags, "-x", "c++", "-E", "-P", "-"], input=text,
                          capture_output=True, text=True, check=True)
    return sum(1 for line in done.stdout.splitlines() if line.strip())


def trace(compiler, name, text, flags):
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "unit.o")
        subprocess.run([*command(compiler, flags, target), "-ftime-trace"], input=text, text=True, check=True)
        with open(os.path.join(folder, "unit.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    print(f"\n{name} ({compiler}): milliseconds")
    for kind, title in (("Source", "headers, with what they include"), ("InstantiateClass", "classes"), ("InstantiateFunction", "functions")):
        total = {}
        for event in events:
            if event.get("name") == kind:
                what = re.sub(r"<.*", "<…>", event["args"]["detail"]).removeprefix(os.path.join(ROOT, "include") + "/")
                total[what] = total.get(what, 0) + event["dur"]
        print(f"  {title}: {sum(total.values()) / 1000:.0f} in sum, nested ones counted more than once")
        for what, duration in sorted(total.items(), key=lambda item: -item[1])[:14]:
            print(f"    {duration / 1000:8.0f}  {what}")
    for event in events:
        if event.get("name") in ("Total Frontend", "Total Backend", "Total Source", "Total PerformPendingInstantiations"):
            print(f"  {event['name']}: {event['dur'] / 1000:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", action="append")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="the rows whose name contains this")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    wanted = options.compiler or [path for path in (compilers.find("g++"), compilers.find("clang++")) if path]
    chosen = [row for row in rows(mpi_flags()) if options.only in row[0]]
    if options.trace:
        clang = next((path for path in wanted if "clang" in path), None) or compilers.find_or_skip("clang++")
        for name, text, flags, _ in chosen:
            trace(clang, name, text, flags)
        return 0
    taken = {}
    for _ in range(options.runs):  # in turn, so that a busy moment meets all rows
        for name, text, flags, _ in chosen:
            for compiler in wanted:
                taken.setdefault((name, compiler), []).append(seconds(compiler, text, flags))
    width = max(len(name) for name, *_ in chosen)
    print(" " * width + "".join(f"{os.path.basename(compiler):>12}" for compiler in wanted) + f"{'lines':>10}   user seconds, median of {options.runs}")
    slow = 0
    for name, text, flags, limit in chosen:
        medians = [statistics.median(taken[name, compiler]) for compiler in wanted]
        over = bool(limit) and any("clang" not in compiler and median > limit for compiler, median in zip(wanted, medians))
        slow += over
        print(f"{name:{width}}" + "".join(f"{median:12.2f}" for median in medians) + f"{lines_of(text, flags):10}"
              + (f"   limit {limit:g}{' is exceeded' if over else ''}" if limit else ""))
    return 1 if slow and options.limits else 0


if __name__ == "__main__":
    sys.exit(main())
