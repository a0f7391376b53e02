#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares predicted with measured steps: calibrates each backend, predicts the steps of a GPT and of a perceptron at the
stages of ZeRO with fake ranks, measures them, and prints a row for each.

    benchmarks/validate_plan.py BUILD [--ranks 2] [--backends threads,shm,mpi,gloo,mpi-link,gloo-link] [--rounds 3] [--held-out]

With --held-out both models have other sizes, and the perceptron another optimizer: those of the other rows were seen before the
prediction had its present form.

mpi-link and gloo-link run on two hosts made of namespaces with a link of --megabits between them; they need root.
Predictions and measurements alternate, and a row has their medians over the rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "hosts"))
import namespaces  # noqa: E402


class Runner:
    """Starts programs on the ranks of a backend."""

    def __init__(self, name, ranks, megabits):
        self.backend, _, link = name.partition("-")
        self.ranks = ranks
        self.hosts = namespaces.Hosts(2, megabits) if link else None

    def close(self):
        if self.hosts:
            self.hosts.close()

    def report(self, program, *words, launch=True):
        """Returns what the program writes with --json."""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "report.json")
            command = [os.path.abspath(program), *words, "--json", file]
            if launch:
                command += ["--backend", "serial" if self.ranks == 1 else self.backend, "--ranks", str(self.ranks)]
            if launch and self.hosts:
                slots = os.path.join(folder, "slots")
                with open(slots, "w", encoding="ascii") as out:
                    out.write("".join(f"{name} slots={self.ranks // 2}\n" for name in self.hosts.names))
                started = self.hosts.start("node1", "mpirun", "-np", self.ranks, "--hostfile", slots, "--mca", "plm_rsh_agent",
                                           self.hosts.agent, "--bind-to", "none", *command, TERM="dumb",
                                           OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                           OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,tcp")
                [(status, text)] = self.hosts.finish([started], 120)
            else:
                if launch and self.ranks > 1 and self.backend != "threads":
                    command = [os.path.join(ROOT, "tests", "mpirun"), "--timeout", "120", str(self.ranks), *command]
                done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, check=False)
                status, text = done.returncode, done.stdout
            if status:
                sys.exit(f"{' '.join(command)}: status {status}\n{text}")
            with open(file, encoding="utf-8") as content:
                return json.load(content)


def gpt(runner, options, stage, fake):
    words = ["--text", os.path.join(ROOT, "docs", "reliability.md"), "--sample", "0", "--steps", str(options.steps),
             "--bucket-kib", "256", "--zero", str(stage)]
    if options.held_out:
        words += ["--layers", "3", "--width", "96", "--heads", "3", "--batch", "4"]
    said = runner.report(os.path.join(options.build, "examples", "train_gpt"), *words, *fake, launch=not fake)
    times = said["seconds_per_step"]
    return times["all"] if fake else sum(times.values())


def perceptron(runner, options, stage, fake):
    words = ["--modes", "overlap", "--rounds", "4", "--steps", "10", "--zero", str(stage)]
    if options.held_out:
        words += ["--layers", "4", "--width", "640", "--batch", "48", "--optimizer", "adamw"]
    said = runner.report(os.path.join(options.build, "benchmarks", "train_step"), *words, *fake, launch=not fake)
    return said["seconds"] if fake else said["modes"][0]["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backends", default="threads,shm,mpi,gloo,mpi-link,gloo-link")
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seconds", default="12", help="of a calibration")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--megabits", type=int, default=1000)
    options = parser.parse_args()
    print("| model | backend | ranks | stage | predicted ms | measured ms | difference |\n|---|---|---|---|---|---|---|", flush=True)
    differences = []
    for name in options.backends.split(","):
        if "-" in name and (reason := namespaces.reason_against()):
            print(f"skipped {name}: {reason}")
            continue
        runner = Runner(name, options.ranks, options.megabits)
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "calibration.json")
            calibration = Runner("threads", 2, 0) if options.ranks == 1 else runner  # one rank makes no calls
            with open(file, "w", encoding="utf-8") as out:
                json.dump(calibration.report(os.path.join(options.build, "benchmarks", "calibrate"), "--seconds",
                                             options.seconds), out)
            for program in (perceptron, gpt):
                for stage in map(int, options.stages.split(",")):
                    fake = ["--fake", str(options.ranks), "--calibration", file]
                    pairs = [(program(runner, options, stage, fake), program(runner, options, stage, []))
                             for _ in range(options.rounds)]
                    predicted, measured = (statistics.median(column) for column in zip(*pairs, strict=True))
                    differences.append(abs(predicted / measured - 1))
                    print(f"| {program.__name__} | {name} | {options.ranks} | {stage} | {1e3 * predicted:.2f} | "
                          f"{1e3 * measured:.2f} | {100 * (predicted / measured - 1):+.1f} % |", flush=True)
        runner.close()
    print(f"{sum(each <= 0.1 for each in differences)} of {len(differences)} rows within 10 %")


if __name__ == "__main__":
    main()
