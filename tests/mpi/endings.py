#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks how programs end: all ranks, soon, with the right status, and with the error in words.

    tests/mpi/endings.py PROGRAM       the program built of ending.cpp
"""
import os
import subprocess
import sys

MPIRUN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "mpirun")
SECONDS = 40  # the program's own deadlines are ten minutes: whatever is slower than this has hung
NOT_ENDED = "without calling"  # MPI's launcher on a rank that went without MPI_Finalize

RECOVERY = "--enable-recovery"  # the others outlive a rank

# way: status is 0? (None: either), words that are there, words that are not, ranks (0: without the launcher), environment, or RECOVERY
WAYS = {
    "": (True, [], ["ended by", NOT_ENDED], 3, {}),
    "a communicator outlives the connector": (True, ["sum 3"], ["ended by", NOT_ENDED], 3, {}),
    "all fail": (False, ["a bad file"], [NOT_ENDED, "Backtrace", "terminate called"], 3, {}),
    "one fails": (
        False,
        ["ended by: "],  # of whichever rank is the first: the launcher then ends the others
        ["Backtrace", "terminate called"],
        3,
        {},
    ),
    "one fails, no deadline": (False, ["ended by: "], ["Backtrace", "terminate called"], 3, {}),
    "killed in a large call": (
        None,  # the launcher's own affair
        ["all_reduce on rank 0 of 3 (mpi): ", "all_reduce on rank 2 of 3 (mpi): ", "rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        3,
        RECOVERY,
    ),
    # Without recovery, the launcher ends the others, before their destructors are over.
    "killed in a large call, printed at once": (
        False,
        ["noticed: distx: all_reduce on rank ", "rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        3,
        {},
    ),
    "killed, and continued without": (
        True,
        ["all_reduce: lost", "rank 0 is 0 of 2: sum 2", "rank 2 is 1 of 2: sum 2"],
        ["ended by", "no error", NOT_ENDED],
        4,
        RECOVERY,
    ),
    "killed before it makes a communicator": (
        None,
        ["ended by: distx: MpiCommunicator on rank 0 of 3 (mpi): timed out after 3 s: not all ranks joined"],
        ["Segmentation fault", "terminate called"],
        3,
        RECOVERY,
    ),
    "killed before it makes a group": (
        None,
        ["rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        3,
        RECOVERY,
    ),
    "killed before it makes a communicator of those that are left": (
        None,
        ["MpiCommunicator on rank 0 of 3 (mpi): rank 1 of 3 (pid", "exited unexpectedly"],
        ["Segmentation fault", "terminate called"],
        3,
        RECOVERY,
    ),
    "hangs in MPI": (
        False,
        ["rank 1 of 3 (mpi): a call of MPI has not returned for 13 s, beyond the deadline of 3 s"],
        ["ended by", "terminate called"],
        3,
        {},
    ),
    "hangs in MPI in a message": (
        False,
        ["rank 1 of 3 (mpi): a call of MPI has not returned for 13 s, beyond the deadline of 3 s"],
        ["ended by", "terminate called"],
        3,
        {},
    ),
    "killed while groups are made": (
        None,
        [f"rank {rank} of 3 (mpi): a call of MPI has not returned for 13 s" for rank in (0, 2)],
        ["ended by", "terminate called"],
        3,
        RECOVERY,
    ),
    "killed while MPI ends": (None, [], ["ended by", "has not returned", "terminate called"], 3, RECOVERY),
    "once more": (False, ["MPI has already been finalised in this process"], ["terminate called"], 2, {}),
    "another MPI's launcher": (False, ["a launcher has started 4 ranks (PMI_SIZE is set)"], [], 0, {"PMI_SIZE": "4"}),
    "alone": (True, [], ["ended by"], 0, {}),
}


def main():
    wrong = 0
    for way, (good, there, absent, ranks, environment) in WAYS.items():
        command = [sys.argv[1], way]
        if ranks:
            recovery = [RECOVERY] if environment == RECOVERY else []
            command = [MPIRUN, "--timeout", str(SECONDS), *recovery, str(ranks), *command]
        done = subprocess.run(
            command,
            env={**os.environ, **(environment if environment != RECOVERY else {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS + 30,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode == 77 and ranks:
            print(said, end="")
            return 77
        complaints = []
        if done.returncode == 124:
            complaints.append("it hung")
        if good is not None and (done.returncode == 0) != good:
            complaints.append(f"its status is {done.returncode}")
        complaints += [f"{words!r} is missing" for words in there if words not in said]
        complaints += [f"{words!r} is there" for words in absent if words in said]
        print(f"{'wrong' if complaints else 'right'}: {way or 'a plain end'}")
        if complaints:
            wrong += 1
            print("    " + "; ".join(complaints) + "\n" + said)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
