#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts ranks by tools/ranks and checks what becomes of them.

    tests/connect/ranks.py PROGRAM       processes that meet in a folder; PROGRAM is tests/connect/meets.cpp
    tests/connect/ranks.py --launcher    tools/ranks itself: it must be able to say no
"""
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RANKS = os.path.join(ROOT, "tools", "ranks")
program = None


def environment(**variables):
    """This one without what a launcher sets, and with these."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("DISTX_FILE", "DISTX_RANK", "DISTX_SIZE", "OMPI_", "PMI_", "MPI_", "SLURM_", "WORLD_",
                                                                            "DISTX_CONNECT"))}
    return dict(kept, **variables)


def run(*command, **variables):
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env=environment(**variables), timeout=120)


class InFolder(unittest.TestCase):
    """A folder for temporary files that is empty again at the end."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()

    def tearDown(self):
        left = os.listdir(self.folder)
        shutil.rmtree(self.folder)
        self.assertEqual(left, [])

    def ranks(self, *arguments):
        return run(RANKS, *arguments, TMPDIR=self.folder)


class Launcher(InFolder):
    def test_every_rank_knows_itself(self):
        done = self.ranks(3, "sh", "-c", 'echo "$DISTX_RANK of $DISTX_SIZE in $DISTX_FILE $NCCL_HOSTID"')
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, "")
        lines = sorted(done.stdout.splitlines())
        self.assertEqual([line.split()[:3] for line in lines], [[str(rank), "of", "3"] for rank in range(3)])
        self.assertEqual(len({line.split()[4] for line in lines}), 1)
        self.assertTrue(all(len(line.split()) == 5 for line in lines))

    def test_one_gpu(self):
        done = self.ranks("--one-gpu", 3, "sh", "-c", "echo $NCCL_SOCKET_IFNAME $NCCL_NET $NCCL_HOSTID")
        lines = done.stdout.splitlines()
        self.assertEqual({tuple(line.split()[:2]) for line in lines}, {("lo", "Socket")})
        self.assertEqual(len({line.split()[2] for line in lines}), 3)

    def test_status(self):
        for script, status in (("exit 0", 0), ("exit 3", 3), ("exit 77", 77), ("exit $((77 * DISTX_RANK))", 1),
                               ("exit $((3 * DISTX_RANK))", 3), ("kill -9 $$", 137)):
            self.assertEqual(self.ranks(2, "sh", "-c", script).returncode, status, script)
        self.assertEqual(self.ranks(2, "/there/is/no/such/program").returncode, 127)

    def test_one_that_is_to_die(self):
        one = "[ $DISTX_RANK = 1 ] || exit 0; "
        self.assertEqual(self.ranks("--dies", 1, 3, "sh", "-c", one + "kill -9 $$").returncode, 0)
        self.assertEqual(self.ranks("--dies", 1, 3, "true").returncode, 1)
        self.assertEqual(self.ranks("--dies", 1, 3, "sh", "-c", "exit 77").returncode, 77)
        self.assertEqual(self.ranks("--dies", 1, "--grace", 0, 3, "sh", "-c", one + "exit 5").returncode, 1)
        # Two are wrong, whichever comes first: the one that lives, and the one that dies.
        self.assertIn(self.ranks("--dies", 0, 3, "sh", "-c", one + "kill -9 $$").returncode, (1, 137))

    def test_bad_arguments(self):
        for arguments in ([], ["0", "true"], ["two", "true"], ["2"], ["--timeout", "2", "true"], ["--what", "2", "true"],
                          ["--dies", "2", "2", "true"]):
            done = self.ranks(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage: ranks", done.stderr)

    def test_the_program_keeps_its_arguments(self):
        done = self.ranks(1, "printf", "%s|", "--timeout", "a b", "")
        self.assertEqual(done.stdout, "--timeout|a b||")

    def ends_everything(self, status, *arguments):
        """Every process holds the pipe open for as long as it lives."""
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        began = time.monotonic()
        status_then = subprocess.call([RANKS, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, env=environment(TMPDIR=self.folder, PIPE=pipe))
        took = time.monotonic() - began
        os.set_blocking(reader, True)
        os.read(reader, 100)  # what they wrote, or the end; blocks while one lives and has written nothing
        self.assertEqual(os.read(reader, 100), b"", "a process is left")
        os.close(reader)
        os.remove(pipe)
        self.assertEqual(status_then, status)
        return took

    def kill(self, script, choose, number, status):
        """Sends a signal to a process of the launcher once both ranks have written; nothing may be left."""
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
            launcher = subprocess.Popen([RANKS, "2", "sh", "-c", "exec 9>$PIPE; " + script], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                        preexec_fn=lambda: signal.signal(signal.SIGQUIT, signal.SIG_DFL),
                                        env=environment(TMPDIR=self.folder, PIPE=pipe))
            os.set_blocking(reader.fileno(), True)
            text = b""
            while text.count(b"\n") < 2:
                text += reader.read(100)
            for process in choose(launcher.pid, int(text.split()[0])):
                os.kill(process, number)
            self.assertEqual(launcher.wait(60), status)
            self.assertTrue(select.select([reader], [], [], 30)[0], "a process is left")  # it would live for a minute
            self.assertEqual(reader.read(100), b"", "a process is left")
        os.remove(pipe)

    def wait_until_empty(self):
        end = time.monotonic() + 30
        while os.listdir(self.folder) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_launcher_that_is_killed_leaves_no_process_and_no_folder(self):
        with_children = "(trap '' TERM; exec sleep 60) & setsid sleep 60 & echo $PPID >&9; wait"
        for choose, number, status in ((lambda first, second: [first], signal.SIGKILL, -9),
                                       (lambda first, second: [second], signal.SIGKILL, 137),
                                       (lambda first, second: [first], signal.SIGQUIT, 131),
                                       (lambda first, second: [first], signal.SIGTERM, 143)):
            self.kill(with_children, choose, number, status)
            self.wait_until_empty()

    def test_the_next_start_removes_the_folder_of_a_launcher_that_was_killed_as_a_whole(self):
        self.kill("echo $PPID >&9; exec sleep 60", lambda first, second: [second, first], signal.SIGKILL, -9)
        self.assertEqual(len(os.listdir(self.folder)), 1)
        used = os.path.join(self.folder, "distx-ranks-used")
        os.mkdir(used)
        descriptor = os.open(used, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        self.assertEqual(self.ranks(1, "true").returncode, 0)
        self.assertEqual(os.listdir(self.folder), ["distx-ranks-used"])
        os.close(descriptor)
        self.assertEqual(self.ranks(1, "true").returncode, 0)

    def test_the_ranks_keep_their_folder_locked(self):
        """Of a launcher that was killed as a whole, children of ranks may be left."""
        done = self.ranks(1, "sh", "-c", "! flock -n $(dirname $DISTX_FILE) true")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_rank_of_several_starts_no_job(self):
        done = self.ranks(2, RANKS, 1, "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("of 2 already (DISTX_RANK, DISTX_SIZE), so each rank would start a separate job; unset", done.stderr)
        self.assertEqual(self.ranks(1, RANKS, 2, "true").returncode, 0)
        self.assertEqual(self.ranks(2, "env", "-u", "DISTX_RANK", RANKS, 1, "true").returncode, 0)

    def test_the_time(self):
        stubborn = "exec 9>$PIPE; echo x >&9; trap '' TERM; (trap '' TERM; sleep 60) & sleep 60; wait"
        self.assertLess(self.ends_everything(124, "--timeout", "1", "2", "sh", "-c", stubborn), 20)

    def test_one_that_fails_ends_the_others(self):
        script = "exec 9>$PIPE; echo x >&9; [ $DISTX_RANK = 0 ] && exit 4; sleep 60"
        self.assertLess(self.ends_everything(4, "--grace", "1", "3", "sh", "-c", script), 20)

    def test_the_last_that_ends_is_named_too(self):
        done = self.ranks(1, "sh", "-c", "exit 4")
        self.assertEqual((done.returncode, done.stderr), (4, "ranks: rank 0 of 1 ended with status 4\n"))

    def test_the_others_may_say_so_themselves(self):
        done = self.ranks(2, "sh", "-c", "[ $DISTX_RANK = 0 ] && exit 4; sleep 1; echo I too")
        self.assertEqual((done.returncode, done.stdout), (4, "I too\n"))


class Meeting(InFolder):
    def test_laws(self):
        for size in (1, 2, 3, 4, 7):
            for case in ("laws", "threads"):
                done = self.ranks("--timeout", 60, size, program, case, "file")
                self.assertEqual((done.returncode, done.stderr), (0, ""), f"{case} on {size}")

    def test_a_rank_that_is_killed(self):
        for size in (2, 3, 4, 7):
            done = self.ranks("--timeout", 60, "--dies", size - 1, size, program, "killed")
            self.assertEqual((done.returncode, done.stderr), (0, ""), f"on {size}")
            self.assertIn(f"barrier on rank 0 of {size} (file): rank {size - 1} of {size} (pid ", done.stdout)

    def test_a_rank_that_exits(self):
        done = self.ranks("--timeout", 60, 3, program, "exits")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_rank_that_throws(self):
        done = self.ranks("--timeout", 60, 3, program, "throws")
        lines = done.stderr.splitlines()
        self.assertEqual((done.returncode, lines[0], len(lines)), (1, "as it should", 2), lines)
        self.assertTrue(lines[1].startswith("ranks: rank 2 of 3 ended with status 1"), lines)

    def refusal(self, **variables):
        done = run(program, "meets", **variables)
        self.assertEqual(done.returncode, 1, variables)
        return done.stderr.strip()

    def test_variables(self):
        cure = ("set DISTX_FILE to a folder that all ranks share, DISTX_RANK to the rank (from 0), and DISTX_SIZE to the "
                "number of ranks")
        start = "distx: connect (file): "
        folder = os.path.join(self.folder, "meet")
        self.assertEqual(self.refusal(DISTX_RANK="0", DISTX_SIZE="2"), f"{start}DISTX_FILE is not set; {cure}")
        self.assertEqual(self.refusal(DISTX_FILE=folder, DISTX_SIZE="2"), f"{start}DISTX_RANK is not set; {cure}")
        self.assertEqual(self.refusal(DISTX_FILE=folder, DISTX_RANK="0"), f"{start}DISTX_SIZE is not set; {cure}")
        self.assertEqual(self.refusal(DISTX_FILE=folder, DISTX_RANK="one", DISTX_SIZE="2"),
                         f"{start}invalid DISTX_RANK 'one': must be a number in [0, 65535]; {cure}")
        for rank, size, what in (("2", "2", "DISTX_RANK=2 contradicts DISTX_SIZE=2: the rank must be in [0, 2)"),
                                 ("-1", "2", "invalid DISTX_RANK '-1': must be a number in [0, 65535]"),
                                 ("0", "0", "invalid DISTX_SIZE '0': must be a number in [1, 65536]"),
                                 ("0", "2147483647", "invalid DISTX_SIZE '2147483647': must be a number in [1, 65536]")):
            self.assertIn(what, self.refusal(DISTX_FILE=folder, DISTX_RANK=rank, DISTX_SIZE=size))

    def test_log(self):
        done = self.ranks("--timeout", 60, 2, "env", "DISTX_LOG=info", program, "meets")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, "distx: connect: launcher 'file' (DISTX_FILE is set), 2 ranks, 2 on this host\n")

    def test_they_go_before_other_launchers(self):
        done = run(RANKS, "2", program, "laws", OMPI_COMM_WORLD_SIZE="2", WORLD_SIZE="2", TMPDIR=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_alone(self):
        self.assertEqual(run(program, "meets").returncode, 0)


if __name__ == "__main__":
    if sys.argv[1] == "--launcher":
        case = Launcher
    else:
        case, program = Meeting, os.path.abspath(sys.argv[1])
    result = unittest.TextTestRunner(sys.stdout).run(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    sys.exit(0 if result.wasSuccessful() else 1)
