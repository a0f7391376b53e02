#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks what distx-flight says about ranks that part.

    tests/observe/flight.py PROGRAM   the ranks are processes of PROGRAM (parting.cpp)
    tests/observe/flight.py           made-up records only
"""
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RANKS = os.path.join(ROOT, "tools", "ranks")
FLIGHT = os.path.join(ROOT, "tools", "distx-flight")
program = None


def flight(*arguments):
    return subprocess.run([sys.executable, FLIGHT, *arguments], capture_output=True, text=True, check=False)


def call(number, operation="all_reduce", state="completed", **more):
    return {"group": "0", "rank": 0, "size": 2, "queue": "blocking", "call": number, "operation": operation, "op": "sum",
            "type": "float32", "send_count": 8, "receive_count": 8, "state": state, "file": "/home/train.cpp", "line": 40 + number,
            "function": "main()", **more}


def record(rank, calls, size=2, error=None):
    return {"format": "distx flight record 1", "rank": rank, "size": size, "written_ns": 1, "error": error,
            "groups": [{"name": "0", "rank": rank, "size": size, "backend": "mpi"}],
            "calls": [{**one, "rank": rank, "size": size} for one in calls]}


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.folder)

    def write(self, *records):
        for one in records:
            with open(os.path.join(self.folder, f"flight_rank_{one['rank']}.json"), "w", encoding="utf-8") as file:
                json.dump(one, file)

    def says(self, status=1):
        done = flight(self.folder)
        self.assertEqual((done.returncode, done.stderr), (status, ""))
        return done.stdout.splitlines()


class MadeUp(Folder):
    def test_messages_for_pytorch(self):
        times = {"created_ns": 5, "started_ns": 6, "completed_ns": 7}
        exchange = call(1, "send_receive", queue="messages", to=2, receive_count=3, tag=0, **{"from": 1}, **times)
        one = record(0, [exchange, call(2, "all_gather", in_group=4, uneven=1, **times)], size=3)
        one["groups"][0]["members"] = [4, 6, 5]
        self.write(one)
        self.assertEqual(flight("--pytorch", self.folder, self.folder).returncode, 0)
        with open(os.path.join(self.folder, "nccl_trace_rank_0"), "rb") as file:
            entries = pickle.load(file)["entries"]
        self.assertEqual([(entry["profiling_name"], entry["p2p_seq_id"], entry["collective_seq_id"]) for entry in entries],
                         [("nccl:send 0->1", 1, 0), ("nccl:recv 0<-2", 2, 0), ("nccl:all_gather_v", 0, 4)])
        self.assertEqual([(entry["input_sizes"], entry["output_sizes"]) for entry in entries],
                         [([[8]], [[8]]), ([[3]], [[3]]), ([[8]], [[8]])])

    def test_no_folder_for_pytorch(self):
        self.write(record(0, []))
        done = flight("--pytorch", os.path.join(self.folder, "missing"), self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("missing", done.stderr)

    def test_agreement(self):
        self.write(record(0, [call(1), call(2)]), record(1, [call(1), call(2)]))
        self.assertEqual(self.says(0), ["the ranks agree: 4 calls on ranks 0 and 1, all completed"])

    def test_a_rank_that_wrote_its_record_earlier(self):
        self.write(record(0, [call(1), call(2)]), record(1, [call(1)]))
        self.assertEqual(self.says(0), ["the ranks agree: 3 calls on ranks 0 and 1, all completed"])

    def test_another_count(self):
        self.write(record(0, [call(1), call(2, state="started")], error="why"),
                   record(1, [call(1), call(2, state="started", send_count=9)]))
        self.assertEqual(self.says(), [
            "the ranks diverged at call 2 of group 0 (2 ranks, mpi): rank 0 called all_reduce (8 float32, sum) at train.cpp:42; "
            "rank 1 called all_reduce (9 float32, sum) at train.cpp:42",
            "  rank 0: why"])

    def test_full_rings_begin_at_different_calls(self):
        self.write(record(0, [call(5), call(6, state="started")]), record(1, [call(3), call(4), call(5)]))
        self.assertEqual(self.says(), [
            "the ranks diverged at call 6 of group 0 (2 ranks, mpi): rank 0 called all_reduce (8 float32, sum) at train.cpp:46; "
            "rank 1 did not join: its last call is all_reduce (8 float32, sum) at train.cpp:45, completed"])

    def test_all_wait_in_one_call(self):
        self.write(record(0, [call(1, state="started")]), record(1, [call(1, state="started")]))
        self.assertEqual(self.says(), [f"rank {rank} has not completed all_reduce (8 float32, sum) at train.cpp:41" for rank in (0, 1)])

    def test_a_rank_that_has_ended(self):
        self.write(record(0, [call(1), call(2, state="started")]), {**record(1, [call(1)]), "ended": True})
        self.assertTrue(self.says()[0].endswith("; rank 1 did not join and has ended: its last call is all_reduce (8 float32, sum) "
                                                "at train.cpp:41, completed"))

    def test_a_rank_without_calls(self):
        self.write(record(0, [call(1, state="started")]), record(1, []))
        self.assertTrue(self.says()[0].endswith("; rank 1 did not join and has made no call"))

    def test_a_cause_goes_before_its_consequence(self):
        # Rank 1 waits for rank 2 in group 1, so it is missing in group 0.
        waits = call(1, operation="barrier", state="started", group="1")
        first, second, third = (record(rank, calls, size=3) for rank, calls in
                                ((0, [call(1), call(2, state="started")]), (1, [call(1), waits]), (2, [call(1)])))
        for one, rank in ((second, 0), (third, 1)):
            one["groups"].append({"name": "1", "rank": rank, "size": 2, "backend": "mpi"})
        second["calls"][1].update({"rank": 0, "size": 2})
        self.write(first, second, third)
        said = self.says()
        self.assertEqual(len(said), 2)
        self.assertTrue(said[0].startswith("the ranks diverged at call 1 of group 1 (2 ranks, mpi): rank 1 called barrier"))
        self.assertIn("; rank 2 did not join: its last call of group 0 is all_reduce", said[0])
        self.assertTrue(said[1].startswith("the ranks diverged at call 2 of group 0 (3 ranks, mpi): rank 0 called all_reduce"))

    def test_messages(self):
        self.write(record(0, [call(1, operation="receive", state="started", queue="messages", **{"from": 1})]), record(1, []))
        self.assertEqual(self.says(), ["rank 0 has not completed receive (8 float32, sum, from 1) at train.cpp:41"])

    def test_json(self):
        self.write(record(0, [call(1, state="started")]), record(1, []))
        done = flight("--json", self.folder)
        found = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(found["diverged"][0]["joined"][0]["ranks"], [0])
        self.assertEqual(found["diverged"][0]["missing"], [{"rank": 1, "recorded": True, "ended": False, "last": None}])

    def test_bad_input(self):
        def refusal(*arguments):
            done = flight(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr.count("\n"), 1)
            return done.stderr
        path = os.path.join(self.folder, "flight_rank_0.json")
        self.assertIn("contains no flight_rank_*.json", refusal(self.folder))
        self.assertIn("cannot read", refusal(path))
        for text, what in (("{", "cannot read"), ("[]", "not a flight record"), ('{"format": "distx flight record 1", "rank": 0}', "incomplete")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            self.assertIn(what, refusal(path))
        self.write(record(0, []))
        self.assertIn("second record of rank 0", refusal(path, path))


class Ranks(Folder):
    def run_ranks(self, how, ranks=3, options=()):
        done = subprocess.run([RANKS, *options, "--timeout", "100", str(ranks), program, how, self.folder], capture_output=True,
                              text=True, check=False, env={**os.environ, "DISTX_FLIGHT": self.folder})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def diverged(self, how, **more):
        self.run_ranks(how, **more)
        return self.says()[0]

    joined = (r"^the ranks diverged at call 3 of group 0 \(3 ranks, shm\): ranks 0 and 1 called all_reduce \(4 float32, sum, "
              r"step 12, phase backward, parameter head\.weight\) at parting\.cpp:\d+; rank 2 ")

    def test_agreement(self):
        self.run_ranks("agree")
        self.assertEqual(self.says(0), ["the ranks agree: 11 calls on ranks 0, 1 and 2, all completed"])

    def test_another_collective(self):
        self.assertRegex(self.diverged("other"), self.joined + r"called broadcast \(4 float32, root 1\) at parting\.cpp:\d+$")

    def test_a_rank_that_leaves(self):
        self.assertRegex(self.diverged("leaves"), self.joined + r"did not join and has ended: its last call of group 0/0\.0 is "
                         r"barrier at parting\.cpp:\d+, completed$")

    def test_a_rank_that_is_killed(self):
        self.assertRegex(self.diverged("dies", options=("--dies", "2")), self.joined + "did not join and left no record$")

    def test_a_rank_that_throws(self):
        self.assertRegex(self.diverged("throws"), self.joined + r"did not join: its last call of group 0/0\.0 is barrier at "
                         r"parting\.cpp:\d+, completed$")

    def test_a_rank_in_an_asynchronous_call(self):
        self.assertRegex(self.diverged("queue"), self.joined + r"did not join: its last call is all_gather \(12 float32\) at "
                         r"parting\.cpp:\d+, which it has not completed$")

    def test_a_rank_in_another_group(self):
        self.run_ranks("group")
        self.assertRegex(self.says()[0], r"of group 0/0\.0 \(2 ranks, shm\)|of group 0 \(3 ranks, shm\)")
        self.assertIn("rank 2 called broadcast (4 float32, root 0)", "".join(self.says()))

    def test_records_for_pytorch(self):
        self.run_ranks("other")
        done = flight("--pytorch", self.folder, self.folder)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        dumps = []
        for rank in range(3):
            with open(os.path.join(self.folder, f"nccl_trace_rank_{rank}"), "rb") as file:
                dumps.append(pickle.load(file))
        self.assertEqual({dump["version"] for dump in dumps}, {"2.10"})
        self.assertEqual(dumps[0]["pg_config"], {"0": {"name": "0", "desc": "shm", "ranks": "[0, 1, 2]"},
                                                 "0/0.0": {"name": "0/0.0", "desc": "shm", "ranks": "[0, 2]"}})
        self.assertEqual([entry["profiling_name"] for entry in dumps[2]["entries"]],
                         ["nccl:all_reduce", "nccl:split", "nccl:barrier", "nccl:broadcast"])
        entry = dumps[0]["entries"][-1]
        self.assertEqual(entry["process_group"], ("0", "shm"))
        self.assertEqual((entry["state"], entry["retired"], entry["collective_seq_id"]), ("started", False, 3))
        self.assertEqual((entry["input_sizes"], entry["output_sizes"], entry["input_dtypes"]), ([[4]], [[4]], ["float32"]))
        self.assertTrue(entry["frames"][0]["filename"].endswith("parting.cpp"))


if __name__ == "__main__":
    cases = [MadeUp]
    if len(sys.argv) > 1:
        program = os.path.abspath(sys.argv[1])
        cases = [Ranks]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    sys.exit(0 if unittest.TextTestRunner(sys.stdout, verbosity=1).run(suite).wasSuccessful() else 1)
