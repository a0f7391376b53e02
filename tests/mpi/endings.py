#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks how programs end: all ranks, soon, with the right status, and with the error in words.

    tests/mpi/endings.py PROGRAM       the program built of ending.cpp
"""
import os
import subprocess
import sys
from typing import NamedTuple

MPIRUN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mpirun")
SECONDS = 40  # the program's own deadlines are ten minutes: whatever is slower than this has hung
NOT_ENDED = "without calling"  # MPI's launcher on a rank that went without MPI_Finalize


class Way(NamedTuple):
    """How a program ends."""

    succeeds: bool | None  # whether its status is 0; None: that is the launcher's own affair
    there: list  # words that it prints
    absent: list  # words that it does not print
    ranks: int = 3  # 0: without the launcher
    environment: dict = {}
    recovery: bool = False  # whether the launcher lets the others outlive a rank


WAYS = {
    "": Way(True, [], ["ended by", NOT_ENDED]),
    "a communicator outlives the connector": Way(True, ["sum 3"], ["ended by", NOT_ENDED]),
    "all fail": Way(False, ["a bad file"], [NOT_ENDED, "Backtrace", "terminate called"]),
    "one fails": Way(
        False,
        ["ended by: "],  # of whichever rank is the first: the launcher then ends the others
        ["Backtrace", "terminate called"],
    ),
    "one fails, no deadline": Way(False, ["ended by: "], ["Backtrace", "terminate called"]),
    "killed in a large call": Way(
        None,
        [
            "all_reduce on rank 0 of 3 (mpi): ",
            "all_reduce on rank 2 of 3 (mpi): ",
            "rank 1 of 3 (pid",
            "exited unexpectedly",
        ],
        ["Segmentation fault", "terminate called"],
        recovery=True,
    ),
    # Without recovery, the launcher ends the others, before their destructors are over.
    "killed in a large call, printed at once": Way(
        False,
        ["noticed: distx: all_reduce on rank ", "rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
    ),
    "killed, caught inside": Way(
        None,
        ["exited unexpectedly", *[f"the connector of rank {rank} is destroyed" for rank in (0, 2)]],
        ["ended by", "terminate called"],
        recovery=True,
    ),
    "absent, caught inside": Way(
        None,
        ["caught: distx: all_reduce on rank ", *[f"the connector of rank {rank} is destroyed" for rank in (0, 2)]],
        ["ended by", "terminate called"],
        recovery=True,
    ),
    "killed, and continued without": Way(
        True,
        ["all_reduce: lost", "rank 0 is 0 of 2: sum 2", "rank 2 is 1 of 2: sum 2"],
        ["ended by", "no error", NOT_ENDED],
        4,
        recovery=True,
    ),
    "killed before it makes a communicator": Way(
        None,
        ["ended by: distx: MpiCommunicator on rank 0 of 3 (mpi): rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        recovery=True,
    ),
    "killed before it makes a group": Way(
        None,
        ["rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        recovery=True,
    ),
    "killed before it makes a communicator of those that are left": Way(
        None,
        ["MpiCommunicator on rank 0 of 3 (mpi): rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        recovery=True,
    ),
    "killed while groups are made": Way(
        None,
        [f"split on rank {rank} of 3 (mpi): timed out after 3 s: not all ranks entered MPI_Comm_split" for rank in (0, 2)],
        ["terminate called", "Segmentation fault"],
        recovery=True,
    ),
    "handles late": Way(True, [], ["ended by", NOT_ENDED, "Segmentation fault", "Aborted"]),
    "once more": Way(False, ["MPI has already been finalised in this process"], ["terminate called"], 2),
    "another MPI's launcher": Way(False, ["a launcher has started 4 ranks (PMI_SIZE is set)"], [], 0, {"PMI_SIZE": "4"}),
    "alone": Way(True, [], ["ended by"], 0),
}


def main():
    wrong = 0
    for name, way in WAYS.items():
        command = [sys.argv[1], name]
        if way.ranks:
            recovery = ["--enable-recovery"] if way.recovery else []
            command = [MPIRUN, "--timeout", str(SECONDS), *recovery, str(way.ranks), *command]
        done = subprocess.run(
            command,
            env={**os.environ, **way.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS + 30,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode == 77 and way.ranks:
            print(said, end="")
            return 77
        complaints = []
        if done.returncode == 124:
            complaints.append("it hung")
        if way.succeeds is not None and (done.returncode == 0) != way.succeeds:
            complaints.append(f"its status is {done.returncode}")
        complaints += [f"{words!r} is missing" for words in way.there if words not in said]
        complaints += [f"{words!r} is there" for words in way.absent if words in said]
        print(f"{'wrong' if complaints else 'right'}: {name or 'a plain end'}")
        if name == "handles late" and "handled late" not in said:
            print("    this MPI handled no event late: nothing was tested")
        if complaints:
            wrong += 1
            print("    " + "; ".join(complaints) + "\n" + said)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
