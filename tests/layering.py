#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks who includes whom in include/distx.

    tests/layering.py [ROOT]        the tree below ROOT (default: this project)
    tests/layering.py --self-test   made-up trees, each of which breaks one rule

Rules: a header includes only its own room and the rooms that ROOMS allows it; a vendor's headers are included in that
vendor's room alone; every other room, and all that distx.hpp reaches, includes the standard library only; nothing
includes an entry header but another entry header. Preprocessor conditions are in a vendor's entry header alone.
"""
import os
import re
import sys

import selftest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# room: the rooms it may include beside itself
BASE = ("core", "memory")
TALK = BASE + ("connect", "comm", "observe", "comm/decorators")
ROOMS = {
    "core": (),
    "memory": ("core",),
    "connect": BASE,
    "connect/file": BASE + ("connect",),
    "comm": BASE + ("connect",),
    "observe": BASE,
    "comm/decorators": BASE + ("connect", "comm", "observe"),
    "tensor": TALK,
    "optim": BASE,
    "parallel": TALK + ("tensor", "optim"),
    "data": TALK,
    "checkpoint": TALK + ("tensor",),
}
# vendor room: the beginnings of the foreign headers that only this room may include
VENDORS = {
    "mpi": ("mpi.h", "boost/mpi", "boost/serialization"),
    "shm": ("sys/", "fcntl.h", "signal.h", "unistd.h"),
    "tcp": ("boost/asio", "boost/system", "openssl/"),
    "gloo": ("gloo/",),
    "cuda": ("cuda", "cublas", "cooperative_groups"),
    "nccl": ("nccl",),
    "eigen": ("Eigen/",),
    "torch": ("torch/", "ATen/", "c10/"),
}
BETWEEN_VENDORS = {"nccl": ("cuda",)}
# heavy rooms: the foreign headers that they may include; distx.hpp leaves them out
HEAVY = {"checkpoint": ("nlohmann/",), "connect/file": ("dirent.h", "fcntl.h", "sys/stat.h", "unistd.h"), "data": ()}

STANDARD = set("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore
set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view syncstream
system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector
version
""".split())

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef)\b", re.MULTILINE)


def headers(root):
    """Paths of all headers, relative to include/distx, sorted."""
    base = os.path.join(root, "include", "distx")
    found = []
    for folder, _, files in os.walk(base):
        found += [os.path.relpath(os.path.join(folder, file), base) for file in files if file.endswith((".hpp", ".cuh"))]
    return sorted(found)


def room_of(header):
    """The room of a header: of an entry header `mpi.hpp` it is `mpi`, of `distx.hpp` it is `entry`."""
    folder = os.path.dirname(header)
    if not folder:
        stem = os.path.splitext(header)[0]
        known = [room for room in (*VENDORS, *ROOMS) if stem == room or stem.startswith(room + "_")]
        return known[0] if known else "entry"
    while folder not in ROOMS and folder not in VENDORS and "/" in folder:
        folder = os.path.dirname(folder)
    return folder


def is_entry(header):
    return "/" not in header


def read(root, header):
    with open(os.path.join(root, "include", "distx", header), encoding="utf-8") as file:
        return file.read()


def may_include(user, used):
    if user == used or used == "entry":
        return True
    if user == "entry":
        return used in ROOMS
    if user in VENDORS:
        return used in ROOMS or used in BETWEEN_VENDORS.get(user, ())
    return used in ROOMS[user]


def foreign_allowed(room):
    return VENDORS.get(room, ()) + HEAVY.get(room, ())


def check(root):
    """All broken rules, as sentences."""
    known = set(headers(root))
    wrong, reached = [], {}
    for header in sorted(known):
        room = room_of(header)
        text = read(root, header)
        if room != "entry" and room not in ROOMS and room not in VENDORS:
            wrong.append(f"{header}: there is no room '{room}'; name it in tests/layering.py")
            continue
        if CONDITION.search(text) and not (is_entry(header) and room in VENDORS):
            wrong.append(f"{header}: preprocessor conditions are for a vendor's entry header alone")
        reached[header] = []
        for bracket, name in INCLUDE.findall(text):
            if bracket == '"' and not name.startswith("distx/"):
                wrong.append(f'{header}: includes "{name}"; write the path from distx/ on')
            elif name.startswith("distx/"):
                used = name[len("distx/"):]
                reached[header].append(used)
                if used not in known:
                    wrong.append(f"{header}: includes <{name}>, which does not exist")
                elif is_entry(used) and not is_entry(header):
                    wrong.append(f"{header}: includes the entry header <{name}>; include what is used")
                elif not may_include(room, room_of(used)):
                    wrong.append(f"{header}: room '{room}' must not know room '{room_of(used)}' (<{name}>)")
            elif name not in STANDARD and not name.startswith(foreign_allowed(room) or ("\0",)):
                wrong.append(f"{header}: room '{room}' must not include <{name}>")

    closure, queue = set(), ["distx.hpp"] if "distx.hpp" in known else []
    while queue:
        header = queue.pop()
        if header in closure or header not in known:
            continue
        closure.add(header)
        queue += reached.get(header, [])
        for _, name in INCLUDE.findall(read(root, header)):
            if not name.startswith("distx/") and name not in STANDARD:
                wrong.append(f"distx.hpp reaches {header}, which includes <{name}>: it must need the standard library only")
    for header in sorted(closure):
        if room_of(header) in VENDORS:
            wrong.append(f"distx.hpp reaches {header}, of the vendor '{room_of(header)}'")
    return wrong


def self_test():
    good = {
        "distx.hpp": "#include <distx/comm/call.hpp>\n#include <vector>",
        "mpi.hpp": "#if 1\n#include <distx/mpi/link.hpp>\n#endif",
        "core/error.hpp": "#include <string>",
        "comm/call.hpp": "#include <distx/core/error.hpp>\n#include <distx/comm/arena/slot.hpp>",
        "comm/arena/slot.hpp": "#include <distx/core/error.hpp>",
        "comm/decorators/checked.hpp": "#include <distx/comm/call.hpp>",
        "mpi/link.hpp": "#include <mpi.h>\n#include <boost/mpi.hpp>\n#include <distx/comm/call.hpp>",
        "cuda/stream.hpp": "#include <cuda_runtime.h>",
        "nccl/link.hpp": "#include <nccl.h>\n#include <distx/cuda/stream.hpp>",
        "checkpoint/save.hpp": "#include <nlohmann/json.hpp>",
    }
    broken = {
        "a lower room": ({"core/error.hpp": "#include <distx/comm/call.hpp>"}, "'core' must not know room 'comm'"),
        "optim knows communication": ({"optim/sgd.hpp": "#include <distx/comm/call.hpp>"}, "'optim' must not know room 'comm'"),
        "data knows training": ({"data/loader.hpp": "#include <distx/parallel/a.hpp>", "parallel/a.hpp": ""}, "'data' must not know"),
        "comm knows its decorators": ({"comm/call.hpp": "#include <distx/comm/decorators/checked.hpp>"}, "'comm' must not know"),
        "vendor to vendor": ({"mpi/link.hpp": "#include <distx/cuda/stream.hpp>"}, "'mpi' must not know room 'cuda'"),
        "a room knows a vendor": ({"parallel/a.hpp": "#include <distx/mpi/link.hpp>"}, "'parallel' must not know room 'mpi'"),
        "vendor header elsewhere": ({"comm/call.hpp": "#include <mpi.h>"}, "'comm' must not include <mpi.h>"),
        "another vendor's header": ({"mpi/link.hpp": "#include <nccl.h>"}, "'mpi' must not include <nccl.h>"),
        "not standard": ({"core/error.hpp": "#include <unistd.h>"}, "must not include <unistd.h>"),
        "spaces in a directive": ({"core/error.hpp": "  #  include  <unistd.h>"}, "must not include <unistd.h>"),
        "closure": ({"distx.hpp": "#include <distx/checkpoint/save.hpp>"}, "distx.hpp reaches checkpoint/save.hpp"),
        "a vendor in distx.hpp": ({"distx.hpp": "#include <distx/mpi/link.hpp>"}, "distx.hpp reaches mpi/link.hpp"),
        "an entry header inside": ({"mpi/link.hpp": "#include <distx/distx.hpp>"}, "entry header"),
        "missing": ({"core/error.hpp": "#include <distx/core/none.hpp>"}, "does not exist"),
        "quotes": ({"core/error.hpp": '#include "error.hpp"'}, "write the path from distx/ on"),
        "no such room": ({"attic/box.hpp": ""}, "no room 'attic'"),
        "condition": ({"mpi/link.hpp": "#ifdef X\n#endif"}, "preprocessor conditions"),
        "condition in distx.hpp": ({"distx.hpp": "#if 1\n#endif"}, "preprocessor conditions"),
    }
    return selftest.of_trees(check, {os.path.join("include", "distx", name): text + "\n" for name, text in good.items()}, {
        name: ({os.path.join("include", "distx", header): text + "\n" for header, text in change.items()}, sentence)
        for name, (change, sentence) in broken.items()
    })


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    wrong = check(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    for sentence in wrong:
        print(sentence)
    print(f"{len(wrong)} rules broken")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
