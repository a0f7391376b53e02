#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Collectives write into the tensors of Python's libraries, and these take distx's memory, without a copy.

    tests/dlpack/peers.py LIBRARY [numpy|torch|jax]

By default with each of the three that Python has, in a process of its own; status 77 if it has none.
"""
import ctypes
import gc
import importlib
import os
import subprocess
import sys
import unittest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if len(sys.argv) == 2:
    statuses = {subprocess.run([sys.executable, *sys.argv, peer], check=False).returncode for peer in ("numpy", "torch", "jax")}
    if statuses == {77}:
        print("skipped: Python has none of PyPI's torch, NumPy and JAX")
    sys.exit(max(statuses - {77}, key=abs, default=77))
PEER = sys.argv[2]
try:
    # Of the same names in all: asarray, from_dlpack, float32.
    xp = importlib.import_module("jax.numpy" if PEER == "jax" else PEER)
    xp.asarray([1.0]).__dlpack__(max_version=(1, 0))
except (ImportError, TypeError) as error:  # the latter is of versions without this argument
    print(f"skipped: 1 test cases: {error}; install PyPI's {PEER}", flush=True)
    sys.exit(77)

LIBRARY = ctypes.CDLL(sys.argv[1])  # its functions run without Python's lock
LIBRARY.refusal.argtypes, LIBRARY.refusal.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], ctypes.c_char_p
LIBRARY.all_reduce.argtypes, LIBRARY.all_reduce.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool], None
LIBRARY.sum_of.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_bool] * 3 + [ctypes.POINTER(ctypes.c_void_p)]
LIBRARY.sum_of.restype = ctypes.c_void_p

CAPSULES = ctypes.pythonapi
CAPSULES.PyCapsule_GetName.argtypes, CAPSULES.PyCapsule_GetName.restype = [ctypes.py_object], ctypes.c_char_p
CAPSULES.PyCapsule_GetPointer.argtypes, CAPSULES.PyCapsule_GetPointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
CAPSULES.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
CAPSULES.PyCapsule_New.argtypes, CAPSULES.PyCapsule_New.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
OLD, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {OLD: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


def taken(tensor, **options):
    """The managed tensor of `tensor`, which the caller owns now, and whether it has a version."""
    capsule = tensor.__dlpack__(**options)
    name = CAPSULES.PyCapsule_GetName(capsule)
    pointer = CAPSULES.PyCapsule_GetPointer(capsule, name)
    CAPSULES.PyCapsule_SetName(capsule, USED[name])
    return pointer, name == VERSIONED


def both(first, second, **options):
    (a, versioned), (b, same) = taken(first, **options), taken(second, **options)
    return a, b, versioned and same


def refusal(tensor, writable=True, **options):
    words = LIBRARY.refusal(*taken(tensor, **options), writable)
    return words.decode() if words else ""


class Sum:
    """The sum of two tensors in memory of distx, as a producer of DLPack."""

    def __init__(self, first, second, read_only):
        self.tensors, self.read_only = both(first, second, max_version=(1, 0)), read_only
        self.address, self.versioned = ctypes.c_void_p(), None

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, max_version=None, **_):
        self.versioned = max_version is not None and max_version[0] >= 1
        pointer = LIBRARY.sum_of(*self.tensors, self.versioned, self.read_only, ctypes.byref(self.address))
        return CAPSULES.PyCapsule_New(pointer, VERSIONED if self.versioned else OLD, None)


def address(x):
    return x.data_ptr() if PEER == "torch" else x.ctypes.data if PEER == "numpy" else x.unsafe_buffer_pointer()


def tensors():
    return (xp.asarray([[1, 2, 3], [4, 5, 6]], dtype=xp.float32), xp.asarray([[10, 20, 30], [40, 50, 60]], dtype=xp.float32))


TOTAL = [[11, 22, 33], [44, 55, 66]]


class Peers(unittest.TestCase):
    if PEER != "jax":  # its arrays are immutable, and always row-major

        def test_a_collective_writes_into_the_tensors_own_memory(self):
            for options in ({}, {"max_version": (1, 0)}):
                x, y = tensors()
                before = address(x), sys.getrefcount(x)
                LIBRARY.all_reduce(*both(x, y, **options))
                self.assertEqual((x.tolist(), y.tolist()), (TOTAL, TOTAL))
                self.assertEqual((address(x), sys.getrefcount(x)), before)

        def test_strides_of_another_order_are_refused(self):
            self.assertIn("shape (3, 2) has strides (1, 3) instead of (2, 1)", refusal(tensors()[0].T))

    if PEER == "numpy":  # which alone marks arrays as read-only

        def test_an_array_that_is_read_only_is_const(self):
            x, _ = tensors()
            x.flags.writeable = False
            self.assertIn("the tensor is read-only", refusal(x, max_version=(1, 0)))
            self.assertEqual(refusal(x, writable=False, max_version=(1, 0)), "")

    def test_a_result_is_taken_without_a_copy_and_freed_with_the_tensor(self):
        for read_only in (False, True):
            total = Sum(*tensors(), read_only)
            z = xp.from_dlpack(total)
            print(f"{PEER} gives version {int(total.tensors[2])} of DLPack, and takes version {int(total.versioned)}")
            self.assertEqual(address(z), total.address.value)
            self.assertEqual(z.tolist(), TOTAL)
            if PEER == "numpy":
                self.assertEqual(z.flags.writeable, not read_only)
            self.assertEqual(LIBRARY.alive(), 1)
            del z
            gc.collect()
            self.assertEqual(LIBRARY.alive(), 0)

    def test_other_element_types_are_refused(self):
        self.assertIn("has elements of int32, not of float32", refusal(xp.asarray([1], dtype=xp.int32)))
        self.assertIn("type code 5 (complex), 64 bits", refusal(xp.asarray([1j], dtype=xp.complex64)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
