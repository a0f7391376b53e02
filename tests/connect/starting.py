#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Starts one program in every way that docs/starting.md describes, and checks what becomes of the ranks.

    tests/connect/starting.py PROGRAM STORE    PROGRAM is tests/connect/meets.cpp, STORE tests/connect/fake_store.cpp
    tests/connect/starting.py --launcher       tools/run itself: it must be able to say no
"""
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUN = os.path.join(ROOT, "tools", "run")
FOREIGN = ("DISTX_", "OMPI_", "PMI", "MPI_", "SLURM_", "TORCHELASTIC_")
COMMON = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX")
program = store = None


def environment(**variables):
    """This one without what a launcher sets, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN) and name not in COMMON}
    return dict(kept, **{name: str(value) for name, value in variables.items()})


def run(*command, **variables):
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env=environment(**variables), timeout=120)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def children_of(process):
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        return file.read().split()


def each(variables, *arguments):
    """Starts a process for each dictionary of variables; returns their (status, output, errors)."""
    started = [subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=environment(**own)) for own in variables]
    done = [process.communicate(timeout=100) for process in started]
    return [(process.returncode, *both) for process, both in zip(started, done)]


def torchrun_of(rank, size, port, agents=1):
    return {"TORCHELASTIC_RUN_ID": "job", "WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
            "GROUP_WORLD_SIZE": agents, "MASTER_ADDR": "localhost", "MASTER_PORT": port}


def mpirun_of(rank, size, port):
    return {"OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_RANK": rank, "PMIX_NAMESPACE": f"job{port}", "PMIX_RANK": rank}


def srun_of(rank, size, port):
    return {"SLURM_JOB_ID": 4294900000 + port, "SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": size,
            "SLURM_STEP_NUM_TASKS": size, "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_NUM_NODES": 1}


# What each row of the page's table says of a rank, in the order in which launchers are asked.
ROWS = {
    "distx-run": lambda rank, size, port: {"DISTX_CONNECT": f"tcp://127.0.0.1:{port}", "DISTX_RANK": rank, "DISTX_SIZE": size},
    "by hand": lambda rank, size, port: {"DISTX_CONNECT": f"tcp://127.0.0.1:{port}?rank={rank}&size={size}"},
    "a shared folder": lambda rank, size, port: {"DISTX_FILE": f"{tempfile.gettempdir()}/distx-starting-{port}", "DISTX_RANK": rank,
                                                 "DISTX_SIZE": size},
    "torchrun": torchrun_of,
    "mpirun": mpirun_of,
    "mpiexec": lambda rank, size, port: {"PMI_SIZE": size, "PMI_RANK": rank, "MPI_LOCALNRANKS": size},
    "PyTorch's variables": lambda rank, size, port: {"WORLD_SIZE": size, "RANK": rank, "MASTER_ADDR": "localhost", "MASTER_PORT": port},
    "srun": srun_of,
}
BY_MPI = ("mpirun", "mpiexec")  # which the program does not include


class Launcher(unittest.TestCase):
    def test_every_rank_knows_itself(self):
        done = run(RUN, "-n", 3, "sh", "-c", 'echo "$DISTX_RANK of $DISTX_SIZE at $DISTX_CONNECT with $DISTX_TOKEN"')
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = sorted(done.stdout.splitlines())
        self.assertEqual([line.split()[:3] for line in lines], [[str(rank), "of", "3"] for rank in range(3)])
        self.assertEqual(len({tuple(line.split()[3:]) for line in lines}), 1)
        self.assertRegex(lines[0], r"at tcp://127\.0\.0\.1:\d+ with [0-9a-f]{64}$")
        self.assertNotIn(lines[0].split()[-1], run(RUN, "-n", 1, "sh", "-c", "echo $DISTX_TOKEN").stdout)

    def test_status(self):
        for script, status in (("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)):
            self.assertEqual(run(RUN, "-n", 2, "sh", "-c", script).returncode, status, script)
        done = run(RUN, "-n", 2, "/there/is/no/such/program")
        self.assertEqual((done.returncode, done.stderr),
                         (127, "run: cannot start '/there/is/no/such/program': No such file or directory\n"))

    def test_the_rank_that_failed_is_named(self):
        done = run(RUN, "-n", 3, "--grace", 0.2, "sh", "-c", "[ $DISTX_RANK = 1 ] && exit 7; sleep 60")
        self.assertEqual(done.returncode, 7)
        self.assertEqual(done.stderr.splitlines(),
                         ["run: rank 1 of 3 ended with status 7; the others have 0.2 s to end",
                          "run: rank 0 of 3 was ended because rank 1 failed", "run: rank 2 of 3 was ended because rank 1 failed"])
        done = run(RUN, "-n", 2, "sh", "-c", "[ $DISTX_RANK = 1 ] && kill -9 $$; sleep 0.1; echo I too")
        self.assertEqual((done.returncode, done.stdout), (137, "I too\n"))
        self.assertIn("rank 1 of 2 was killed by signal 9 (Killed)", done.stderr)

    def test_the_others_continue_with_no_kill(self):
        def killing(script):
            return run(RUN, "-n", 3, "--no-kill", "--grace", 0, "sh", "-c", "[ $DISTX_RANK = 1 ] && kill -9 $$; sleep 0.3; " + script)

        done = killing("echo done")
        self.assertEqual((done.returncode, done.stdout), (0, "done\ndone\n"))
        self.assertEqual(done.stderr, "run: rank 1 of 3 was killed by signal 9 (Killed); the others continue\n")
        self.assertEqual(killing("exit 3").returncode, 3)
        self.assertEqual(run(RUN, "-n", 2, "--no-kill", "sh", "-c", "kill -9 $$").returncode, 137)

    def test_prefix(self):
        done = run(RUN, "-n", 2, "--prefix", "sh", "-c", "echo out; echo err >&2; printf rest")
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] out", "[0] rest", "[1] out", "[1] rest"])
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] err", "[1] err"])

    def test_the_program_keeps_its_arguments(self):
        self.assertEqual(run(RUN, "-n", 1, "printf", "%s|", "--prefix", "a b", "").stdout, "--prefix|a b||")

    def test_bad_arguments(self):
        for arguments in ([], ["true"], ["-n", "0", "true"], ["-n", "two", "true"], ["-n", "2"], ["--what", "-n", "2", "true"]):
            done = run(RUN, *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage: run", done.stderr)

    def with_pipe(self, script, *options, until, status):
        """Every process holds a pipe open for as long as it lives; `until` acts once all ranks have written to it."""
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            process = subprocess.Popen([RUN, "-n", "2", *options, "sh", "-c", "exec 9>$PIPE; " + script], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(PIPE=pipe))
            os.set_blocking(reader, True)
            seen, began = b"", time.monotonic()
            while seen.count(b"x") < 2 and time.monotonic() < began + 30:
                seen += os.read(reader, 100)
            until(process)
            output, _ = process.communicate(timeout=60)
            self.assertTrue(select.select([reader], [], [], 30)[0], "a process is left")  # it would live for a minute
            self.assertEqual(os.read(reader, 100), b"", "a process is left")
            os.close(reader)
            self.assertEqual(process.returncode, status)
            return output

    def test_signals_are_forwarded(self):
        script = "trap 'echo got it; exit 0' USR1; echo x >&9; while :; do sleep 0.05 9>&-; done"
        output = self.with_pipe(script, until=lambda process: process.send_signal(signal.SIGUSR1), status=0)
        self.assertEqual(output, "got it\ngot it\n")
        self.with_pipe("echo x >&9; exec sleep 60", until=lambda process: process.send_signal(signal.SIGTERM), status=143)

    def test_no_process_is_left(self):
        stubborn = "trap '' TERM; (trap '' TERM; exec sleep 60) & setsid sh -c 'trap \"\" TERM; sleep 60; :' & echo x >&9; wait"
        self.with_pipe(stubborn, "--timeout", "1", until=lambda process: None, status=124)
        self.with_pipe("sleep 60 & setsid sleep 60 & echo x >&9", until=lambda process: None, status=0)
        # Nor if it is killed itself.
        self.with_pipe("echo x >&9; exec sleep 60", until=lambda process: process.kill(), status=-9)
        self.with_pipe("(trap '' TERM; exec sleep 60) & setsid sleep 60 & echo x >&9; wait", until=lambda process: process.kill(),
                       status=-9)
        self.with_pipe("(trap '' TERM; exec sleep 60) & setsid sleep 60 & echo x >&9; wait", status=137,
                       until=lambda process: os.kill(int(children_of(process.pid)[0]), signal.SIGKILL))

    def test_a_rank_of_several_starts_no_job(self):
        done = run(RUN, "-n", 2, RUN, "-n", 1, "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("of 2 already (DISTX_RANK, DISTX_SIZE), so each rank would start a separate job; unset", done.stderr)
        self.assertEqual(run(RUN, "-n", 1, RUN, "-n", 2, "true").returncode, 0)


class SeveralHosts(unittest.TestCase):
    """--hosts, with a remote shell that stays on this host."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.shell = os.path.join(self.folder, "rsh")
        with open(self.shell, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\necho "$@" >> {self.folder}/commands\nshift\nexec sh -c "$*"\n')
        os.chmod(self.shell, 0o755)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def run_on(self, hosts, *words, **variables):
        return run(RUN, "--hosts", hosts, "--rsh", self.shell, *words, **variables)

    def test_every_rank_knows_itself(self):
        done = self.run_on("a:2,b", "sh", "-c", 'echo "$DISTX_RANK of $DISTX_SIZE at $DISTX_CONNECT in $PWD $DISTX_LOG $DISTX_TOKEN"',
                           DISTX_LOG="x y")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = sorted(done.stdout.splitlines())
        self.assertEqual([line.split()[:3] for line in lines], [[str(rank), "of", "3"] for rank in range(3)])
        self.assertEqual(len({tuple(line.split()[3:]) for line in lines}), 1)
        self.assertRegex(lines[0], rf" at tcp://a:\d+ in {os.getcwd()} x y [0-9a-f]{{64}}$")
        with open(os.path.join(self.folder, "commands"), encoding="utf-8") as file:
            commands = file.read()
        self.assertEqual(sorted(re.findall("^[ab] sh", commands, re.MULTILINE)), ["a sh", "a sh", "b sh"])
        self.assertNotIn(lines[0].split()[-1], commands)  # the token

    def test_the_program_keeps_its_arguments(self):
        self.assertEqual(self.run_on("a", "printf", "%s|", "a 'b", "$HOME", "", "*").stdout, "a 'b|$HOME||*|")

    def test_the_rank_that_failed_is_named(self):
        pids = os.path.join(self.folder, "pids")
        done = self.run_on("a:2,b", "--grace", 0.2, "sh", "-c",
                           f"[ $DISTX_RANK = 1 ] && exit 7; trap '' TERM; echo $$ >> {pids}; while :; do sleep 1; done")
        self.assertEqual(done.returncode, 7)
        self.assertEqual(done.stderr.splitlines(),
                         ["run: rank 1 of 3 ended with status 7; the others have 0.2 s to end",
                          "run: rank 0 of 3 was ended because rank 1 failed", "run: rank 2 of 3 was ended because rank 1 failed"])
        with open(pids, encoding="ascii") as file:
            self.assertFalse([pid for pid in file.read().split() if os.path.exists(f"/proc/{pid}")])
        done = self.run_on("a:2", "sh", "-c", "[ $DISTX_RANK = 1 ] && kill -9 $$; sleep 0.1; echo I too")
        self.assertEqual((done.returncode, done.stdout), (137, "I too\n"))
        self.assertIn("rank 1 of 2 was killed by signal 9 (Killed)", done.stderr)

    def test_a_launcher_that_is_killed_leaves_nothing(self):
        pid = os.path.join(self.folder, "pid")
        launcher = subprocess.Popen([RUN, "--hosts", "a", "--rsh", self.shell, "sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; "
                                     "sleep 60; :"], stdin=subprocess.DEVNULL, env=environment())
        end = time.monotonic() + 20
        while not os.path.exists(pid) and time.monotonic() < end:
            time.sleep(0.01)
        launcher.kill()
        launcher.wait()
        with open(pid, encoding="ascii") as file:
            process = file.read().strip()
        while os.path.exists(f"/proc/{process}") and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(os.path.exists(f"/proc/{process}"))

    def test_bad_arguments(self):
        for hosts in ("a:0", "a:x", ":2", "a,,b", "-oProxyCommand=x"):
            done = self.run_on(f"{hosts}", "true") if hosts[0] != "-" else run(RUN, f"--hosts={hosts}", "true")
            self.assertEqual(done.returncode, 2, hosts)
            self.assertIn("invalid host", done.stderr)
        self.assertEqual(run(RUN, "-n", 2, "--hosts", "a", "true").returncode, 2)
        done = self.run_on("a", "/there/is/no/such/program")
        self.assertEqual((done.returncode, "cannot start '/there/is/no/such/program' on " in done.stderr), (127, True))
        done = run(RUN, "--hosts", "a", "--rsh", "/there/is/no/such/shell", "true")
        self.assertEqual((done.returncode, done.stderr),
                         (127, "run: cannot start '/there/is/no/such/shell': No such file or directory\n"))


class Starting(unittest.TestCase):
    def assert_all_met(self, done):
        self.assertEqual([(status, errors) for status, _, errors in done], [(0, "")] * len(done))

    def test_distx_run(self):
        for size in (1, 2, 3, 4, 7):
            for case in ("laws", "threads"):
                done = run(RUN, "-n", size, program, case, "tcp")
                self.assertEqual((done.returncode, done.stderr), (0, ""), f"{case} on {size}")

    def test_two_hundred_ranks(self):
        done = run(RUN, "-n", 200, program, "meets", "tcp")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_rank_that_is_killed(self):
        for size in (2, 4):
            done = run(RUN, "-n", size, program, "killed")
            self.assertEqual(done.returncode, 137, done.stderr)
            self.assertEqual(done.stderr.splitlines()[0].split(";")[0], f"run: rank {size - 1} of {size} was killed by signal 9 (Killed)")
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)  # the others have found what they expect
            self.assertIn(f"barrier on rank 0 of {size} (tcp): rank {size - 1} of {size} (pid ", done.stdout)

    def test_rank_0_that_is_killed(self):
        done = run(RUN, "-n", 3, program, "killed first")
        self.assertEqual(done.returncode, 137, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(done.stdout.count("(tcp): rank 0 of 3 (at 127.0.0.1:"), 2, done.stdout)

    def test_rank_0_that_is_stopped(self):
        port = free_port()
        root, other = each([{"DISTX_CONNECT": f"tcp://localhost:{port}?rank={rank}&size=2&timeout=3"} for rank in range(2)], "stopped")
        self.assertEqual(root[0], -signal.SIGKILL)
        self.assertEqual(other, (0, "distx: barrier on rank 1 of 2 (tcp): timed out after 3 s: rank 0 does not answer\n", ""))

    def test_a_rank_that_exits_or_throws(self):
        done = run(RUN, "-n", 3, program, "exits", "tcp")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        done = run(RUN, "-n", 3, program, "throws", "tcp")
        self.assertEqual((done.returncode, done.stderr.splitlines()[0]), (1, "as it should"))
        self.assertEqual(done.stderr.count("\n"), 2)  # the other line is of tools/run

    def test_log(self):
        done = run(RUN, "-n", 2, program, "meets", DISTX_LOG="info")
        self.assertRegex(done.stderr, r"^distx: connect: launcher 'tcp' \(DISTX_CONNECT=tcp://127\.0\.0\.1:\d+\), 2 ranks, "
                                      r"2 on this host\n$")

    def test_url_by_hand(self):
        port = free_port()
        self.assert_all_met(each([{"DISTX_CONNECT": f"tcp://localhost:{port}?rank={rank}&size=2"} for rank in range(2)], "laws", "tcp"))
        with tempfile.TemporaryDirectory() as folder:
            self.assert_all_met(each([{"DISTX_CONNECT": f"file://{folder}/meet?rank={rank}&size=2"} for rank in range(2)],
                                     "laws", "file"))
        self.assert_all_met(each([{"DISTX_CONNECT": "self://", "WORLD_SIZE": "4"}], "meets"))

    def test_kubernetes_job(self):
        port = free_port()
        self.assert_all_met(each([{"DISTX_CONNECT": f"tcp://localhost:{port}?size=2", "DISTX_TOKEN": "secret",
                                   "JOB_COMPLETION_INDEX": rank} for rank in range(2)], "laws", "tcp"))

    def test_every_address(self):
        """Rank 0 binds all addresses only with a token; otherwise it listens on loopback."""
        port = free_port()
        url = f"tcp://localhost:{port}?bind=0.0.0.0&size=2&rank="
        self.assert_all_met(each([{"DISTX_CONNECT": f"{url}{rank}", "DISTX_TOKEN": "secret"} for rank in range(2)], "laws", "tcp"))
        (status, _, errors), = each([{"DISTX_CONNECT": f"{url}0"}], "laws")
        self.assertEqual(status, 1)
        self.assertIn(f"0.0.0.0:{port} (0.0.0.0) is not a loopback address", errors)
        done = run(RUN, "-n", 2, program, "listening")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        ports = done.stdout.split()
        self.assertEqual([entry.split(":")[0] for entry in ports], ["0100007F"], done.stdout)

    def torch(self, rank, size, port, **more):
        return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "localhost",
                "MASTER_PORT": port, **more}

    def test_variables_of_pytorch(self):
        port = free_port()
        self.assert_all_met(each([self.torch(rank, 3, port) for rank in range(3)], "laws", "tcp"))
        done = each([self.torch(rank, 2, free_port(), DISTX_LOG="info", WORLD_SIZE="two") for rank in range(2)], "meets")
        self.assertEqual([errors for _, _, errors in done],
                         ["distx: connect (env): invalid WORLD_SIZE 'two': must be a number in [1, 65536]\n"] * 2)

    def test_variables_of_torchrun(self):
        with subprocess.Popen([store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
            port = int(agent.stdout.readline())
            for restart in (0, 1):
                torchrun = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": restart}
                for size in (2, 4):
                    # Inside of a job step of Slurm, too.
                    done = each([self.torch(rank, size, port, SLURM_PROCID=0, SLURM_STEP_NODELIST="node1", **torchrun)
                                 for rank in range(size)], "laws", "tcp")
                    self.assert_all_met(done)
            done = each([self.torch(rank, 2, port, DISTX_LOG="info", **torchrun) for rank in range(2)], "meets")
            self.assertEqual(done[0][2], "distx: connect: launcher 'torchrun' (TORCHELASTIC_RUN_ID is set), 2 ranks, 2 on this host\n")
            agent.stdin.close()

    @unittest.skipUnless(shutil.which("torchrun"), "there is no torchrun: pip install torch")
    def test_torchrun(self):
        done = run("torchrun", "--standalone", "--no-python", "--nproc-per-node", 3, program, "laws", "tcp")
        self.assertEqual(done.returncode, 0, done.stderr)
        # A rank that is killed is named, and nothing is left running.
        done = run("torchrun", "--standalone", "--no-python", "--nproc-per-node", 3, program, "killed")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"rank +: 2 \(local_rank: 2\)\n +exitcode +: -9")
        # After a restart, the ranks meet in the same store.
        first_fails = '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 0 ] || exit 3; exec "$@"'
        done = run("torchrun", "--standalone", "--no-python", "--max-restarts", 1, "--nproc-per-node", 2, "sh", "-c", first_fails,
                   "sh", program, "laws", "tcp", DISTX_LOG="info")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("launcher 'torchrun' (TORCHELASTIC_RUN_ID is set), 2 ranks"), 1, done.stderr)

    @unittest.skipUnless(shutil.which("torchrun"), "there is no torchrun: pip install torch")
    def test_two_agents_of_torchrun(self):
        command = ["torchrun", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                   f"localhost:{free_port()}", "--rdzv-id", "job", "--no-python", program, "laws", "tcp"]
        agents = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=environment(DISTX_LOG="info")) for _ in range(2)]
        outputs = [agent.communicate(timeout=100)[0] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0, 0], outputs)
        self.assertEqual("".join(outputs).count("4 ranks, 4 on this host"), 1, outputs)

    def test_slurm(self):
        job = {"SLURM_NTASKS": 3, "SLURM_STEP_NODELIST": "localhost,node[01-03,7]", "SLURM_JOB_ID": os.getpid() % 100000,
               "SLURM_STEP_ID": 0}
        done = each([{"SLURM_PROCID": rank, "SLURM_LOCALID": rank, **job} for rank in range(3)], "laws", "tcp")
        self.assert_all_met(done)
        done = each([{"SLURM_PROCID": rank, "DISTX_LOG": "info", **job} for rank in range(3)], "meets")
        self.assertIn("launcher 'slurm' (SLURM_PROCID and SLURM_STEP_NODELIST are set)", done[0][2])

    def assert_refused(self, done, *parts):
        """Every rank ends with one line, a ConnectError that has the parts."""
        for status, output, errors in done:
            self.assertEqual((status, output, errors.count("\n")), (1, "", 1), errors)
            for part in ("distx: connect", *parts):
                self.assertIn(part, errors)

    def test_a_size_of_one_never_hides_several_ranks(self):
        """Each pair of rows: one says that a rank is alone, the other that it is one of two."""
        rows = list(ROWS)
        for one in rows:
            for two in rows:
                port = free_port()
                alone = ROWS[one](0, 1, port)
                both = [ROWS[two](rank, 2, port) for rank in range(2)]
                if set(alone) & set(both[0]):
                    continue  # the inner launcher's variables replace the outer's
                with self.subTest(one=one, two=two):
                    done = each([{**alone, **own, "DISTX_LOG": "info"} for own in both], "meets")
                    # Without MPI's launcher, tasks of Slurm may be mpirun's daemons.
                    foreign = two in BY_MPI or (one in BY_MPI and two == "srun") or {one, two} == {"by hand", "a shared folder"}
                    if not foreign and (one in BY_MPI or rows.index(two) < rows.index(one)):
                        self.assertEqual([status for status, _, _ in done], [0, 0], done)
                        self.assertIn("2 ranks, 2 on this host", "".join(errors for _, _, errors in done))
                    else:
                        self.assert_refused(done)

    def test_one_launcher_per_host_may_start_another(self):
        """srun or mpirun starts torchrun on two hosts, which starts two ranks on each; or all sizes agree."""
        for outer in (srun_of, mpirun_of):
            port = free_port()
            self.assert_all_met(each([{**outer(rank // 2, 2, port), **torchrun_of(rank, 4, port, agents=2)} for rank in range(4)],
                                     "laws", "tcp"))
            port = free_port()
            self.assert_all_met(each([{**outer(0, 1, port), **torchrun_of(rank, 2, port)} for rank in range(2)], "laws", "tcp"))
            port = free_port()
            self.assert_all_met(each([{**outer(rank // 2, 2, port), **ROWS["PyTorch's variables"](rank, 4, port)} for rank in range(4)],
                                     "laws", "tcp"))

    def test_several_jobs_of_torchrun_are_refused(self):
        """srun or mpirun starts two agents, each of which knows of itself alone."""
        for outer in (srun_of, mpirun_of):
            for size in (1, 2, 4):
                port = free_port()
                self.assert_refused(each([{**outer(task, 2, port), **torchrun_of(rank, size, port)} for task in range(2)
                                          for rank in range(size)], "meets"), "GROUP_WORLD_SIZE=1 contradicts", "=2: ")

    def test_several_ranks_are_not_hidden_by_another_number_either(self):
        for row in ("distx-run", "by hand", "a shared folder"):
            for other in ("mpirun", "mpiexec", "srun", "PyTorch's variables", "torchrun"):
                port = free_port()
                done = each([{**ROWS[row](rank, 2, port), **ROWS[other](0, 3, port)} for rank in range(2)], "meets")
                self.assert_refused(done, "contradicts", "=3: ")
                # As many, but another rank.
                done = each([{**ROWS[row](0, 2, port), **ROWS[other](1, 2, port)}], "meets")
                self.assert_refused(done, "contradicts", "=1: ")

    def test_a_batch_script_of_several_tasks_is_one_rank(self):
        """Slurm allocates tasks to it, but only srun starts them; the shell of salloc may be a separate step."""
        batch = {"SLURM_JOB_ID": 7, "SLURM_PROCID": 0, "SLURM_LOCALID": 0, "SLURM_NTASKS": 4, "SLURM_JOB_NODELIST": "node1"}
        shell = {**batch, "SLURM_STEP_ID": 4294967290, "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_NUM_NODES": 1}
        for own in (batch, shell, {**shell, "SLURM_STEP_NUM_TASKS": 1}):
            done = each([{**own, "DISTX_LOG": "info"}], "meets")
            self.assertEqual(done[0][0], 0, done)
            self.assertIn(" 1 ranks, 1 on this host", done[0][2])
            done = run(RUN, "-n", 2, program, "laws", **own)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_rank_that_is_not_set_is_that_of_the_launcher(self):
        """A job script exports everything but the rank."""
        for launcher in (srun_of, mpirun_of, ROWS["mpiexec"]):
            port = free_port()
            shared = ({"WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port},
                      {"DISTX_CONNECT": f"tcp://localhost:{port}?size=2"},
                      {"DISTX_FILE": f"{tempfile.gettempdir()}/distx-starting-{port}", "DISTX_SIZE": 2},
                      {"DISTX_CONNECT": f"file://{tempfile.gettempdir()}/distx-starting-{port}?size=2"})
            for own in shared:
                with self.subTest(own=own):
                    self.assert_all_met(each([{**launcher(rank, 2, port), **own} for rank in range(2)], "laws"))
        self.assert_refused(each([{**srun_of(1, 3, 7), "WORLD_SIZE": 2}], "meets"), "WORLD_SIZE=2 contradicts SLURM_STEP_NUM_TASKS=3")

    def test_a_choice_ends_a_contradiction(self):
        port = free_port()
        both = [{**torchrun_of(rank, 2, port), **srun_of(rank, 4, port)} for rank in range(2)]
        self.assert_refused(each(both, "meets"), "DISTX_CONNECT=env:// or slurm://")
        self.assert_all_met(each([{**own, "DISTX_CONNECT": "env://"} for own in both], "laws", "tcp"))
        self.assert_all_met(each([{**own, "DISTX_CONNECT": "self://"} for own in both], "meets"))

    def test_the_page(self):
        """Every command of docs/starting.md that a comment marks starts the number of ranks that the comment says."""
        with open(os.path.join(ROOT, "docs", "starting.md"), encoding="utf-8") as file:
            commands = re.findall(r"<!-- tests start (\d+) ranks -->\n```sh\n(.*?)```", file.read(), re.DOTALL)
        self.assertGreaterEqual(len(commands), 6)
        for ranks, command in commands:
            # Other ports and another job than the page's, which something else on this machine may use.
            command = re.sub(r"\b2950\d\b", str(free_port()), command).replace("JOB_ID=7", f"JOB_ID={os.getpid() % 100000}")
            with tempfile.TemporaryDirectory() as folder:
                for name, text in (("train", f'exec "{program}" laws'), ("distx-run", f'exec "{RUN}" "$@"')):
                    path = os.path.join(folder, name)
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(f"#!/bin/sh\n{text}\n")
                    os.chmod(path, 0o755)
                done = subprocess.run(["bash", "-e", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      check=False, cwd=folder, timeout=100,
                                      env=environment(DISTX_LOG="info", PATH=folder + ":" + os.environ["PATH"]))
                self.assertEqual((done.returncode, done.stdout), (0, ""), command + done.stderr)
                self.assertRegex(done.stderr, rf"^distx: connect: launcher '\w+' \(.*\), {ranks} ranks, {ranks} on this host\n$", command)

    def test_alone(self):
        self.assert_all_met(each([{}, {"WORLD_SIZE": 1}], "meets"))


if __name__ == "__main__":
    if sys.argv[1] == "--launcher":
        cases = (Launcher, SeveralHosts)
    else:
        cases = (Starting,)
        program, store = map(os.path.abspath, sys.argv[1:3])
    loaded = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(loaded)
    sys.exit(0 if result.wasSuccessful() else 1)
