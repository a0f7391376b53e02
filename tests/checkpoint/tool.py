#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks distx-checkpoint on checkpoints of train_lenet, and on made-up files.

    tests/checkpoint/tool.py TRAIN_LENET
    tests/checkpoint/tool.py               made-up files only
"""
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "distx-checkpoint")
program = None


def run_tool(*arguments):
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensors_of(path):
    """The types, shapes and bytes of a file, read independently of the tool."""
    with open(path, "rb") as file:
        content = file.read()
    start = 8 + int.from_bytes(content[:8], "little")
    members = json.loads(content[8:start])
    members.pop("__metadata__", None)
    return {name: (one["dtype"], one["shape"], content[start + one["data_offsets"][0]:start + one["data_offsets"][1]])
            for name, one in members.items()}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def says(self, status, *arguments):
        done = run_tool(*arguments)
        self.assertEqual((done.returncode, done.stderr), (status, ""), done.stdout)
        return done.stdout

    def refuses(self, *arguments):
        done = run_tool(*arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        return done.stderr


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def piece(begin, end, shape):
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def shard(pieces):
    """A file of a sharded checkpoint, of {name: (offsets, shape, values)}."""
    header, data, sharding = {}, b"", {}
    for name, (offsets, shape, values) in pieces.items():
        header[name] = piece(len(data), len(data) + 4 * len(values), shape)
        data += floats(*values)
        sharding[name] = {"saved_offsets": offsets}
    return file_of({"__metadata__": {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(sharding)}, **header}, data)


class MadeUp(Case):
    def test_boxes_of_several_files_become_one_tensor(self):
        os.mkdir(self.path("shards"))
        self.write("shards/shard-00001-model-00001-of-00001.safetensors",
                   shard({"x": ([0, 0], [2, 1], [0, 3]), "c": ([1, 0, 0], [1, 2, 2], [4, 5, 6, 7])}))
        self.write("shards/shard-00002-model-00001-of-00001.safetensors",
                   shard({"x": ([0, 1], [2, 2], [1, 2, 4, 5]), "c": ([0, 0, 0], [1, 2, 2], [0, 1, 2, 3])}))
        self.says(0, "consolidate", self.path("shards"), self.path("whole.safetensors"))
        self.assertEqual(tensors_of(self.path("whole.safetensors")),
                         {"x": ("F32", [2, 3], floats(*range(6))), "c": ("F32", [2, 2, 2], floats(*range(8)))})
        self.says(0, "diff", self.path("shards"), self.path("whole.safetensors"))
        self.says(0, "verify", self.path("shards"))
        found = json.loads(self.says(0, "inspect", "--json", self.path("shards")))
        self.assertEqual([(one["name"], one["shape"], one["ranks"]) for one in found["tensors"]],
                         [("c", [2, 2, 2], [0, 1]), ("x", [2, 3], [0, 1])])
        self.write("shards/shard-00002-model-00001-of-00001.safetensors", shard({"x": ([0, 2], [2, 1], [2, 5])}))
        self.assertIn("tensor 'x' once", self.says(1, "verify", self.path("shards")))

    def test_a_hugging_face_folder(self):
        os.mkdir(self.path("model"))
        self.write("model/a.safetensors", file_of({"a": piece(0, 8, [2])}, floats(1, 2)))
        self.write("model/b.safetensors", file_of({"b": piece(0, 4, [1])}, floats(3)))
        self.write("model/other.safetensors", file_of({"c": piece(0, 4, [1])}, floats(3)))
        index = self.write("model/model.safetensors.index.json",
                           json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).encode())
        self.assertIn("2 tensors in 2 files", self.says(0, "inspect", self.path("model")))
        for mapped, what in (({"a": "b.safetensors"}, "does not contain it"), ({"a": "../a.safetensors"}, "no weight_map"),
                             ({"a": "no.safetensors"}, "absent"), (None, "no weight_map")):
            self.write(index, json.dumps({"weight_map": mapped}).encode())
            self.assertIn(what, self.refuses("inspect", self.path("model")))

    def test_differences(self):
        a = self.write("a", file_of({"only": piece(0, 4, [1]), "shape": piece(4, 12, [2]), "type": piece(12, 16, [1]),
                                     "same": piece(16, 20, [1]), "values": piece(20, 32, [3])}, floats(1, 2, 3, 4, 5, 6, 7, 8)))
        b = self.write("b", file_of({"shape": piece(0, 8, [2, 1]), "type": {**piece(8, 12, [1]), "dtype": "I32"},
                                     "same": piece(12, 16, [1]), "values": piece(16, 28, [3])}, floats(2, 3, 4, 5, 6, 7.5, 9)))
        self.assertEqual(self.says(1, "diff", a, b).splitlines(), [
            f"'only' is in {a} only", "'shape' has shape [2] and [2, 1]", "'type' has type F32 and I32",
            "'values' has 2 of 3 elements that differ, by at most 1"])
        found = json.loads(self.says(1, "diff", "--json", a, b))
        self.assertEqual((found["equal"], [one["differs"] for one in found["differences"]]), (1, ["name", "shape", "type", "values"]))
        self.assertEqual(found["differences"][3]["elements"], 2)
        self.says(0, "diff", a, a)
        for kind, one, other, most in (("BF16", b"\x80\x3f", b"\x00\x40", "1"), ("F16", b"\x00\x3c", b"\x00\x40", "1"),
                                       ("F64", struct.pack("<d", 1), struct.pack("<d", 3), "2"), ("U8", b"\1", b"\xff", "254")):
            member = {"x": {"dtype": kind, "shape": [1], "data_offsets": [0, len(one)]}}
            a, b = self.write("a", file_of(member, one)), self.write("b", file_of(member, other))
            self.assertEqual(self.says(1, "diff", a, b), f"'x' has 1 of 1 elements that differ, by at most {most}\n")

    def test_large_tensors_are_compared_and_copied_in_blocks(self):
        count = 700_000
        header = {"w": piece(0, 4 * count, [count])}
        data = bytearray(os.urandom(4 * count))
        a = self.write("a", file_of(header, data))
        self.says(0, "consolidate", a, self.path("copy"))
        self.assertEqual(tensors_of(self.path("copy"))["w"][2], data)
        data[-1] ^= 1
        data[4 * 300_000] ^= 1
        self.assertIn("2 of 700000 elements", self.says(1, "diff", a, self.write("b", file_of(header, data))))

    def test_bad_files(self):
        tensor = piece(0, 4, [1])
        for content, what in (
                (b"", "does not fit"), (b"\xff" * 8, "does not fit"), ((9).to_bytes(8, "little") + b"{}", "does not fit"),
                (file_of(b"{"), "not valid JSON"), (file_of(b"[]"), "not a JSON object"), (file_of(b"\xff"), "not UTF-8"),
                (file_of(b"[" * 100_000), "not valid JSON"), (file_of(b'{"x":1,"x":2}'), "twice"), (file_of({"x": 1}), "invalid type"),
                (file_of({"x": {**tensor, "dtype": "F31"}}, bytes(4)), "invalid type"),
                (file_of({"x": {**tensor, "dtype": []}}, bytes(4)), "invalid type"),
                (file_of({"x": {**tensor, "shape": [-1]}}, bytes(4)), "invalid type"),
                (file_of({"x": {**tensor, "shape": [2**40, 2**40]}}, bytes(4)), "does not fill"),
                (file_of({"x": {**tensor, "data_offsets": [4, 0]}}, bytes(4)), "does not fill"),
                (file_of({"x": tensor, "y": tensor}, bytes(8)), "'y' at byte 0"), (file_of({"x": tensor}, bytes(5)), "end at 4"),
                (file_of({"x": tensor}, bytes(3)), "end at 4"), (file_of({"__metadata__": {"a": 1}}), "__metadata__")):
            bad = self.write("bad", content)
            self.assertIn(what, self.refuses("inspect", bad))
            self.refuses("verify", bad)
            self.refuses("diff", bad, bad)
            self.refuses("consolidate", bad, self.path("out"))
        self.assertEqual(os.listdir(self.folder), ["bad"])

    def test_pointers_of_git_lfs(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 548105171\n"
        os.mkdir(self.path("model"))
        for name in ("model.safetensors", "model.safetensors.index.json", "checkpoint.json"):
            path = self.write(os.path.join("model", name), pointer)
            self.assertIn(f"{path} is a Git LFS pointer", self.refuses("verify", self.path("model")))

    def test_unfinished_files_of_ended_processes_are_removed(self):
        good = self.write("good", file_of({"x": piece(0, 4, [1])}, floats(1)))
        names = ["out.0123456789abcdef.part", "out.fedcba9876543210.part", "out.part", "other.0123456789abcdef.part"]
        for name in names:
            path = self.write(name, b"x")
            if name != names[1]:
                os.utime(path, (0, os.path.getmtime(good) - 7200))
        self.says(0, "consolidate", good, self.path("out"))
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(["good", "out", *names[1:]]))

    def test_bad_paths(self):
        self.assertIn("does not exist", self.refuses("inspect", self.path("no")))
        self.assertIn("contains neither", self.refuses("verify", self.folder))
        os.mkdir(self.path("step-000000000001"))
        for path in (self.folder, self.path("step-000000000001")):
            self.assertIn("interrupted", self.refuses("inspect", path))
        for content in (b"{}", b'{"format": "distx checkpoint", "version": 2}', b"\xff", b"[" * 100_000,
                        b'{"format": "distx checkpoint", "version": 1}'):
            self.write("step-000000000001/checkpoint.json", content)
            self.assertIn("checkpoint.json", self.refuses("inspect", self.folder))
        unpublished = self.path("step-000000000002.0123456789abcdef.fedcba9876543210.part")
        os.mkdir(unpublished)
        self.assertIn("is not published", self.refuses("verify", unpublished))
        os.mkdir(self.path("new"))
        shutil.move(unpublished, self.path("new"))
        self.assertIn("in progress, or was interrupted", self.refuses("inspect", self.path("new")))
        good = self.write("good", file_of({"x": piece(0, 4, [1])}, floats(1)))
        self.assertIn("exists", self.refuses("consolidate", good, good))
        self.assertIn("cannot write", self.refuses("consolidate", good, self.path("no", "out")))
        self.assertEqual(run_tool("inspect").returncode, 2)


class Trained(Case):
    @classmethod
    def setUpClass(cls):
        cls.trained = tempfile.mkdtemp()
        subprocess.run([program, "--synthetic", "--backend", "threads", "--ranks", "3", "--epochs", "1", "--batch-size", "160",
                        "--zero", "3", "--optimizer", "adamw", "--checkpoint", cls.trained, "--every", "2"],
                       check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.trained)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.trained, self.path("run"))
        self.steps = sorted(glob.glob(self.path("run", "step-*")))
        self.newest = self.steps[-1]

    def manifest(self):
        with open(os.path.join(self.newest, "checkpoint.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_a_checkpoint(self):
        manifest = self.manifest()
        self.assertIn(f"checkpoint of step {manifest['step']}, saved by 3 ranks at stage 3", self.says(0, "inspect", self.path("run")))
        found = json.loads(self.says(0, "inspect", "--json", self.newest))
        self.assertEqual({one["name"]: {"dtype": one["type"], "shape": one["shape"]} for one in found["tensors"]}, manifest["tensors"])
        self.assertEqual({one["name"]: one["bytes"] for one in found["files"]},
                         {one["name"]: one["bytes"] for one in manifest["files"]})
        self.assertIn("is complete", self.says(0, "verify", self.newest))
        self.assertGreater(json.loads(self.says(0, "verify", "--json", self.newest))["checksums"], len(manifest["tensors"]))
        self.assertIn(f"  by {manifest['saved_by']}\n", self.says(0, "inspect", self.newest))

    def test_unpublished_folders(self):
        name = "step-000000000999.0123456789abcdef.fedcba9876543210.part"
        os.mkdir(self.path("run", name))
        self.write(os.path.join("run", name, "shard-00001-model-00001-of-00001.safetensors"), b"12345")
        self.assertEqual(self.says(0, "verify", self.path("run")).split()[0], self.newest)
        self.assertIn(f"{name} is not published: 1 files, 5 bytes", self.says(0, "inspect", self.path("run")))
        found = json.loads(self.says(0, "inspect", "--json", self.path("run")))["unpublished"]
        self.assertEqual([(one["name"], one["files"], one["bytes"]) for one in found], [(name, 1, 5)])

    def test_differences_of_two_steps_and_of_the_consolidated_files(self):
        self.assertIn("elements that differ", self.says(1, "diff", self.steps[0], self.newest))
        self.says(0, "diff", self.newest, self.newest)
        self.says(0, "consolidate", self.newest, self.path("weights"))
        self.says(0, "diff", "--weights", self.newest, self.path("weights"))
        self.assertIn("'optim.state.", self.says(1, "diff", self.newest, self.path("weights")))
        self.says(0, "consolidate", "--everything", self.newest, self.path("all"))
        self.says(0, "diff", self.newest, self.path("all"))
        self.assertEqual(set(tensors_of(self.path("all"))), set(self.manifest()["tensors"]))
        self.assertEqual(json.loads(self.says(0, "consolidate", "--json", self.newest, self.path("third")))["bytes"],
                         os.path.getsize(self.path("third")))

    def test_damage(self):
        victim = sorted(glob.glob(os.path.join(self.newest, "*.safetensors")))[1]
        with open(victim, "rb") as file:
            content = bytearray(file.read())
        header = 8 + int.from_bytes(content[:8], "little")
        members = json.loads(content[8:header])
        for name, one in members.items():
            if name == "__metadata__":
                continue
            damaged = bytearray(content)
            damaged[header + one["data_offsets"][1] - 1] ^= 0x10
            self.write(victim, damaged)
            problems = json.loads(self.says(1, "verify", "--json", self.newest))["problems"]
            self.assertEqual([(p["file"], p["tensor"]) for p in problems], [(os.path.basename(victim), name)])
            self.assertIn(f"tensor '{name}' does not have its checksum", self.refuses("consolidate", self.newest, self.path("out")))
        for damaged, what in ((content[:-1], "end at"), (bytes(content[:8]) + content[8:].replace(b"F32", b"I32", 1), "checksum"),
                              (None, "absent")):
            if damaged is None:
                os.unlink(victim)
            else:
                self.write(victim, damaged)
            self.assertIn(what, self.says(1, "verify", self.newest))
            self.assertIn(victim, self.refuses("inspect", self.newest))
        path = os.path.join(self.newest, "checkpoint.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.write(path, text.replace('"ranks": 3', '"ranks": 4').encode())
        self.assertIn("does not have its checksum", self.refuses("verify", self.newest))


if __name__ == "__main__":
    cases = [MadeUp]
    if len(sys.argv) > 1:
        program = os.path.abspath(sys.argv[1])
        cases = [Trained]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    sys.exit(0 if unittest.TextTestRunner(sys.stdout, verbosity=1).run(suite).wasSuccessful() else 1)
