#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests what the other tests lean on: tests/mpirun, tests/sanitized, tools/summary and tools/pack must be able to say no.

    tests/harness.py mpirun|sanitized|summary|pack
"""
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import compilers  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def run(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


class Mpirun(unittest.TestCase):
    def launch(self, *arguments):
        return run(os.path.join(HERE, "mpirun"), *arguments)

    def test_status_passes_through(self):
        for status in (0, 3, 77):
            self.assertEqual(self.launch("2", "sh", "-c", f"exit {status}").returncode, status)

    def test_number_of_ranks(self):
        for ranks in (1, 7):
            self.assertEqual(self.launch(str(ranks), "echo", "here").stdout.split(), ["here"] * ranks)

    def test_deadline(self):
        done = self.launch("--timeout", "2", "2", "sleep", "600")
        self.assertEqual(done.returncode, 124)
        self.assertIn("did not end within 2 s", done.stdout)

    @unittest.skipUnless(os.path.isdir("/proc/self"), "processes are found in /proc, which is not mounted here")
    def test_nothing_is_left_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            # A launcher that cannot be asked to stop, and whose rank leads a session of its own. Both hold the pipe open
            # for as long as they live: it ends only when both are gone.
            pipe, launcher = os.path.join(folder, "pipe"), os.path.join(folder, "launcher")
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            with open(launcher, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n[ $1 = --version ] && exit\ntrap '' TERM\nexec 9>{pipe}\n"
                           "setsid sh -c 'echo here >&9; sleep 60' &\nsleep 60\nwait\n")
            os.chmod(launcher, 0o755)
            # No output is captured: that would wait for whoever is left behind.
            status = subprocess.call([os.path.join(HERE, "mpirun"), "--timeout", "1", "2", "x"],
                                     env=dict(os.environ, MPIRUN=launcher), stdout=subprocess.DEVNULL)
            self.assertEqual(status, 124)
            os.set_blocking(reader, True)
            self.assertTrue(select.select([reader], [], [], 5)[0])
            self.assertEqual(os.read(reader, 100), b"here\n")
            self.assertTrue(select.select([reader], [], [], 5)[0], "a process outlived the launcher")
            self.assertEqual(os.read(reader, 100), b"")
            os.close(reader)


class Sanitized(unittest.TestCase):
    RACE = "#include <thread>\nint n; int main() { std::thread a([] { ++n; }), b([] { ++n; }); a.join(); b.join(); }\n"
    OVERFLOW = "int main(int argc, char**) { return 2147483647 + argc == 0; }\n"
    OUTSIDE = "int main(int argc, char**) { int* p = new int[2]; int x = p[argc + 1]; delete[] p; return x & 0; }\n"
    CLEAN = "int main() {}\n"

    def status(self, text, *flags):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program")
            command = [compilers.find_or_skip("g++"), "-O1", "-g", "-w", "-pthread", *flags, "-x", "c++", "-", "-o", program]
            built = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
            if built.returncode:
                self.skipTest(f"the compiler cannot link with {flags[0]}")
            done = run(os.path.join(HERE, "sanitized"), program)
        if done.returncode == 77:
            self.skipTest(done.stdout.strip())
        return done.returncode

    def test_race(self):
        self.assertEqual(self.status(self.CLEAN, "-fsanitize=thread"), 0)
        self.assertNotEqual(self.status(self.RACE, "-fsanitize=thread"), 0)

    def test_memory(self):
        flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
        self.assertEqual(self.status(self.CLEAN, *flags), 0)
        self.assertNotEqual(self.status(self.OUTSIDE, *flags), 0)
        self.assertNotEqual(self.status(self.OVERFLOW, *flags), 0)


class Summary(unittest.TestCase):
    def summary(self, *logs):
        """The status and the last line for logs given as lists of results; None is a log that is not there."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, results in enumerate(logs):
                paths.append(os.path.join(folder, str(number), "meson-logs", "testlog.json"))
                os.makedirs(os.path.dirname(paths[-1]))
                if results is not None:
                    with open(paths[-1], "w", encoding="utf-8") as file:
                        file.writelines(json.dumps({"name": "n", "result": result}) + "\n" for result in results)
            done = run(os.path.join(compilers.ROOT, "tools", "summary"), *paths)
            return done.returncode, done.stdout.splitlines()[-1]

    def test_counts(self):
        self.assertEqual(self.summary(["OK", "SKIP"], ["OK", "EXPECTEDFAIL"]), (0, "3 passed, 0 failed, 1 skipped"))
        for bad in ("FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS"):
            self.assertEqual(self.summary(["OK", bad]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_build_that_failed(self):
        self.assertEqual(self.summary(["OK"], None), (1, "1 passed, 1 failed, 0 skipped"))

    def test_nothing_ran(self):
        self.assertEqual(self.summary([])[0], 1)


class Pack(unittest.TestCase):
    def listed(self, *programs):
        """The status and the words for a build folder that lists these programs."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "tests"))
            open(os.path.join(folder, "build.ninja"), "w", encoding="utf-8").close()
            with open(os.path.join(folder, "tests", "gpu_programs.txt"), "w", encoding="utf-8") as file:
                file.write("# a comment\n" + "".join(program + "\n" for program in programs))
            done = run(os.path.join(compilers.ROOT, "tools", "pack"), "--list", folder)
            return done.returncode, done.stdout + done.stderr

    def test_what_is_there(self):
        status, words = self.listed("a; unit; -; 9; cuda; tests/main.cpp tests/connect/file_test.cpp; ")
        self.assertEqual(status, 0, words)
        for file in ("run", "tools/ranks", "vendor/doctest/doctest.h", "vendor/nccl.h", "include/distx/file.hpp"):
            self.assertIn(file, words.splitlines())

    def test_what_is_missing(self):
        status, words = self.listed("a; unit; -; 9; cuda; tests/there_is_none.cpp; ")
        self.assertEqual(status, 1)
        self.assertIn("not packed: tests/there_is_none.cpp", words)
        status, words = self.listed("a; unit; -; 9; mpi; tests/main.cpp; ")
        self.assertEqual(status, 1)
        self.assertIn("'mpi' cannot be packed", words)


if __name__ == "__main__":
    case = {"mpirun": Mpirun, "sanitized": Sanitized, "summary": Summary, "pack": Pack}[sys.argv[1]]
    if case is Mpirun and not (os.environ.get("MPIRUN") or shutil.which("mpirun") or shutil.which("mpiexec")):
        print("skipped: there is no mpirun on PATH")
        sys.exit(77)
    result = unittest.TextTestRunner(sys.stdout).run(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    if result.wasSuccessful() and len(result.skipped) == result.testsRun:
        print(f"skipped: {result.skipped[-1][1].removeprefix('skipped: ')}")
        sys.exit(77)
    sys.exit(0 if result.wasSuccessful() else 1)
