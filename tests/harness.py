#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests what the other tests lean on: tests/mpirun, tests/sanitized, tools/summary and tools/pack must be able to say no,
and tools/lib.sh to configure anew.

    tests/harness.py mpirun|sanitized|summary|configure|pack
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
        self.check_that_all_are_ended(subprocess.DEVNULL, [124])

    @unittest.skipUnless(os.path.isdir("/proc/self"), "processes are found in /proc, which is not mounted here")
    def test_nothing_is_left_behind_where_nobody_reads(self):
        reader, writer = os.pipe()
        os.close(reader)
        self.check_that_all_are_ended(writer, range(1, 256))
        os.close(writer)

    def check_that_all_are_ended(self, stdout, statuses):
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
                                     env=dict(os.environ, MPIRUN=launcher), stdout=stdout, stderr=subprocess.DEVNULL)
            self.assertIn(status, statuses)
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
    def summary(self, *logs, stdout="", name="n"):
        """The status and the last line for logs given as lists of results; None is a log that is not there."""
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, results in enumerate(logs):
                paths.append(os.path.join(folder, str(number), "meson-logs", "testlog.json"))
                os.makedirs(os.path.dirname(paths[-1]))
                if results is not None:
                    with open(paths[-1], "w", encoding="utf-8") as file:
                        file.writelines(json.dumps({"name": name, "result": result, "stdout": stdout}) + "\n"
                                        for result in results)
            done = run(os.path.join(compilers.ROOT, "tools", "summary"), *paths)
            return done.returncode, *done.stdout.splitlines()[-2 if stdout else -1:]

    def test_counts(self):
        self.assertEqual(self.summary(["OK", "SKIP"], ["OK", "EXPECTEDFAIL"]), (0, "3 passed, 0 failed, 1 skipped"))
        for bad in ("FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS"):
            self.assertEqual(self.summary(["OK", bad]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_build_that_failed(self):
        self.assertEqual(self.summary(["OK"], None), (1, "1 passed, 1 failed, 0 skipped"))

    def test_nothing_ran(self):
        self.assertEqual(self.summary([])[0], 1)

    def test_cases_that_a_program_skipped(self):
        words = "[doctest] 3 passed\nskipped: 2 test cases need 2 ranks or more\n"
        status, reason, counts = self.summary(["OK"], stdout=words)
        self.assertEqual((status, counts), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertTrue(reason.endswith("n: 2 test cases need 2 ranks or more"), reason)
        _, reason, _ = self.summary(["OK"], stdout="test_torchrun (__main__.Starting.test_torchrun) ... skipped 'there is no torchrun'\n")
        self.assertTrue(reason.endswith("n: there is no torchrun"), reason)

    def test_tests_that_need_torch(self):
        ran, counts = self.summary(["OK", "SKIP", "OK"], stdout="-", name="distx:unit+torch / n")[1:]
        self.assertEqual((ran, counts), ("of 3 tests that need PyPI's torch, 2 ran", "2 passed, 0 failed, 1 skipped"))


class Configure(unittest.TestCase):
    """`configure` in tools/lib.sh, on a project whose library appears between two calls, as by apt-get."""

    PROJECT = """
project('p', 'cpp')
compiler = meson.get_compiler('cpp')
found = compiler.has_header('appears.h', args: '-I' + get_option('place'))
summary('it', found ? 'is there' : 'is absent')
executable('program', 'program.cpp')
message('optimization ' + get_option('optimization'), found ? 'THERE' : 'ABSENT')
"""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.put("meson.build", self.PROJECT)
        self.put("meson_options.txt", "option('place', type: 'string')\n")
        self.put("program.cpp", "int main() {}\n")
        self.put("status", "")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def put(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def configured(self, *options):
        """Configures build/; returns what Meson found, and whether ninja then compiled the program."""
        script = ('. "$1/tools/lib.sh"; cd "$2"; package_status=$2/status; shift 2; '
                  'configure build "-Dplace=$PWD" "$@"; ninja -C build; tail -n 50 build/meson-logs/meson-log.txt')
        done = run("bash", "-c", script, "bash", compilers.ROOT, self.folder, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return ("THERE" if "THERE" in done.stdout else "ABSENT"), "program.cpp.o" in done.stdout

    def installs(self):
        """A package database that is newer than the build folder."""
        end = os.stat(os.path.join(self.folder, "build", "build.ninja")).st_mtime + 2
        os.utime(os.path.join(self.folder, "status"), (end, end))

    def test_what_is_installed_is_looked_for_again_and_objects_and_options_are_kept(self):
        self.assertEqual(self.configured("-Doptimization=1"), ("ABSENT", True))
        self.put("appears.h", "")
        self.installs()
        self.assertEqual(self.configured(), ("THERE", False))
        os.remove(os.path.join(self.folder, "appears.h"))
        self.installs()
        self.assertEqual(self.configured(), ("ABSENT", False))
        with open(os.path.join(self.folder, "build", "meson-private", "cmd_line.txt"), encoding="utf-8") as file:
            self.assertIn("optimization = 1", file.read())

    def test_absence_of_what_is_installed_is_an_error(self):
        script = '. "$1/tools/lib.sh"; is_installed() { [ "$1" != libdeflate-dev ]; }; demanded_options'
        options = run("bash", "-c", script, "bash", compilers.ROOT).stdout.split()
        self.assertEqual(options, ["-Dmpi=enabled", "-Dgloo=enabled", "-Deigen=enabled"])


class Pack(unittest.TestCase):
    def listed(self, *programs):
        """The status and the words for a build folder that lists these programs."""
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "tests", "gpu"))
            open(os.path.join(folder, "build.ninja"), "w", encoding="utf-8").close()
            with open(os.path.join(folder, "tests", "gpu", "gpu_programs.txt"), "w", encoding="utf-8") as file:
                file.write("# a comment\n" + "".join(program + "\n" for program in programs))
            done = run(os.path.join(compilers.ROOT, "tools", "pack"), "--list", folder)
            return done.returncode, done.stdout + done.stderr

    def test_what_is_there(self):
        status, words = self.listed("a; unit; -; 9; cuda; tests/main.cpp tests/connect/file_test.cpp; ")
        self.assertEqual(status, 0, words)
        for file in ("run", "tools/ranks", "tools/run", "vendor/doctest/doctest.h", "vendor-nccl-default/nccl.h", "include/distx/file.hpp"):
            self.assertIn(file, words.splitlines())

    def test_what_is_missing(self):
        status, words = self.listed("a; unit; -; 9; cuda; tests/there_is_none.cpp; ")
        self.assertEqual(status, 1)
        self.assertIn("not packed: tests/there_is_none.cpp", words)
        status, words = self.listed("a; unit; -; 9; mpi; tests/main.cpp; ")
        self.assertEqual(status, 1)
        self.assertIn("'mpi' cannot be packed", words)

    PROGRAMS = {
        "good": "int main(int count, char**) { return count == 3 ? 0 : 9; }",
        "bad": "int main() { return 3; }",
        "skipped": '#include <cstdio>\nint main() { std::puts("skipped: for a reason"); return 77; }',
        "old_driver": '#include <cstdio>\nint main() { std::puts("skipped: there is no GPU here: too old"); return 77; }',
        "slow": "#include <unistd.h>\nint main() { sleep(60); }",
        "broken": "int main() { return nothing; }",
        "one_fails": '#include <cstdlib>\nint main() { return std::atoi(std::getenv("DISTX_RANK")); }',
    }

    # Clients are counted in a file, by its size.
    RUNTIME = """#include <fcntl.h>
#include <unistd.h>
enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
inline int cudaSetDevice(int) {
  static const int before = [] {
    const int file = open("clients", O_CREAT | O_WRONLY | O_APPEND, 0600);
    return write(file, "x", 1) == 1 ? static_cast<int>(lseek(file, 0, SEEK_END)) : 9;
  }();
  return before <= CLIENTS ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline int cudaMalloc(void**, unsigned long) { return cudaSuccess; }
inline int cudaMemset(void*, int, unsigned long) { return cudaSuccess; }
inline int cudaDeviceSynchronize() { return cudaSuccess; }
"""

    def test_run(self):
        compilers.find_or_skip("g++")
        with tempfile.TemporaryDirectory() as folder:
            def put(path, text, mode=0o644):
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(path, mode)

            for script, place in (("run_pack", "run"), ("ranks", "tools/ranks"), ("run", "tools/run")):
                with open(os.path.join(compilers.ROOT, "tools", script), encoding="utf-8") as file:
                    put(place, file.read(), 0o755)
            put("cuda/bin/nvcc", "#!/bin/sh\necho release 0.0,\n", 0o755)
            put("vendor-nccl-default/nccl.h", "")
            put("bin/nvidia-smi", "#!/bin/sh\nif [ $1 = -L ]; then echo GPU 0:; echo GPU 1:; else echo A, 1.0, 9.0; fi\n", 0o755)
            lines = []
            for name, text in self.PROGRAMS.items():
                put(f"{name}.cpp", text + "\n")
                ranks = {"good": "1,2", "one_fails": "2 --grace 0"}.get(name, "-")
                seconds = 1 if name == "slow" else 30
                lines.append(f"{name}; unit; {ranks}; {seconds}; cuda; {name}.cpp; {'a b' if name == 'good' else ''}\n")
            put("gpu_programs.txt", "".join(lines))
            command = ["env", "CUDA_HOME=" + os.path.join(folder, "cuda"), "PATH=/usr/local/bin:/usr/bin:/bin",
                       os.path.join(folder, "run"), "--results", os.path.join(folder, "results")]
            done = run(*command)
            lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
            self.assertEqual((done.returncode, lines[-1]), (1, "2 passed, 4 failed, 3 skipped"), done.stdout)
            self.assertIn("0 programs are built", lines)
            for beginning in ("passed good a b on 1 ", "passed good a b on 2 ", "failed bad status 3 ",
                              "skipped skipped for a reason", "failed slow did not end within 1 s",
                              "failed broken broken.cpp does not compile: broken.cpp:1:",
                              "failed one_fails on 2 status 1 "):
                self.assertTrue(any(line.startswith(beginning) for line in lines), beginning + "\n" + done.stdout)
            done = run(*command, "--only", "^good$")
            self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, "2 passed, 0 failed, 0 skipped"))
            self.assertIn("1 programs are built", done.stdout.splitlines())  # by the run before
            os.remove(os.path.join(folder, "programs", "good"))
            self.assertIn("0 programs are built", run(*command, "--only", "^good$").stdout.splitlines())
            self.assertEqual(run(*command, "--only", "none").returncode, 1)
            # On a machine with two GPUs.
            path = "PATH=" + os.path.join(folder, "bin") + ":/usr/local/bin:/usr/bin:/bin"
            done = run("env", path, *command[1:2], *command[3:], "--only", "^(good|old_driver)$")
            lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
            for beginning in ("passed good a b on 2 GPUs ", "failed old_driver skipped: there is no GPU here: too old"):
                self.assertTrue(any(line.startswith(beginning) for line in lines), beginning + "\n" + done.stdout)
            done = run(*command, "--only", "^good$", "--seconds", "0")
            self.assertNotEqual(done.returncode, 0)
            # The multi-process service is used if two processes have the GPU at once under it.
            put("bin/nvidia-cuda-mps-control", "#!/bin/sh\nexit 0\n", 0o755)
            put("served.cpp", '#include <cstdlib>\nint main() { return std::getenv("CUDA_MPS_PIPE_DIRECTORY") == nullptr; }\n')
            put("turns.cpp", '#include <cstdlib>\nint main() { return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr; }\n')
            put("gpu_programs.txt", "served; unit; -; 30; cuda; served.cpp; \nturns; unit; 3 --grace 0; 30; cuda; turns.cpp; \n")
            # 4: of those of the two tries, of 2 and 3 processes.
            for clients, words, status in ((2, "run at the same time", 0), (4, "3 ranks of a GPU take turns", 0), (1, "take turns", 1)):
                put("cuda/include/cuda_runtime_api.h", self.RUNTIME.replace("CLIENTS", str(clients)))
                for left in ("programs/clients", "clients"):
                    if os.path.exists(os.path.join(folder, left)):
                        os.remove(os.path.join(folder, left))
                done = run("env", path, *command[1:2], *command[3:])
                self.assertEqual((done.returncode, words in done.stdout), (status, True), done.stdout)


if __name__ == "__main__":
    case = {"mpirun": Mpirun, "sanitized": Sanitized, "summary": Summary, "configure": Configure, "pack": Pack}[sys.argv[1]]
    if case is Mpirun and not (os.environ.get("MPIRUN") or shutil.which("mpirun") or shutil.which("mpiexec")):
        print("skipped: there is no mpirun on PATH")
        sys.exit(77)
    result = unittest.TextTestRunner(sys.stdout).run(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    if result.wasSuccessful() and len(result.skipped) == result.testsRun:
        print(f"skipped: {result.skipped[-1][1].removeprefix('skipped: ')}")
        sys.exit(77)
    sys.exit(0 if result.wasSuccessful() else 1)
