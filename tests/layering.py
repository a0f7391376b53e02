#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks which module of include/distx includes which.

    tests/layering.py [ROOT]        the tree below ROOT (default: this project)
    tests/layering.py --self-test   made-up trees, each of which breaks one rule

Rules:
- A header includes its own module and the modules that MODULES allows it.
- Headers under `detail/` of a vendor's module are included in that module only; programs in examples/ include no detail header.
- A vendor's headers are included in that vendor's module only; all other modules include the standard library only.
- Entry headers (include/distx/*.hpp) are included by entry headers only, but for ENTRY_USERS. distx.hpp reaches no vendor.
- The folders inside a module include each other in one direction. Not counted are the module's own folder, whose
  public headers are below its folders (comm/ops.hpp) or above them (comm/hierarchical.hpp), a folder with its own `detail/`,
  and definitions, which no header of the module includes.
- Preprocessor conditions are in vendors' entry headers only, and in CONDITIONAL; an entry header may end with a block of
  DISTX_COMPILED, which includes what the compiled form declares (detail/compiled.hpp) or the definitions (*definitions.hpp).
- DISTX_INLINE is in headers of definitions only, which entry headers and other such headers include.
- Every module that a rule names exists.
- All names are in the inline namespace DISTX_ABI, whose version is that of DISTX_VERSION and of meson.build.
"""
import os
import re
import sys

import selftest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# module: the modules it may include besides itself
BASE = ("core", "memory", "posix")
TALK = BASE + ("connect", "comm", "observe", "comm/decorators")
MODULES = {
    "core": (),
    "memory": ("core",),
    "posix": ("core",),
    "connect": BASE,
    "connect/file": BASE + ("connect",),
    "connect/tcp": BASE + ("connect",),
    "comm": BASE + ("connect", "observe"),
    "observe": BASE,
    "comm/decorators": BASE + ("connect", "comm", "observe"),
    "tensor": TALK,
    "optim": BASE,
    "parallel": TALK + ("tensor", "optim"),
    "data": TALK,
    "data/file": BASE,
    "dlpack": ("core",),
}
# vendor module: the beginnings of the foreign headers that only this module may include
VENDORS = {
    "mpi": ("mpi.h", "boost/mpi", "boost/serialization"),
    "pmix": ("pmix.h",),
    "gloo": ("gloo/", "pthread.h", "sched.h"),
    "shm": ("sys/", "unistd.h"),
    "cuda": ("cuda", "cublas", "cooperative_groups"),
    "nccl": ("nccl", "nvtx3/"),
    "eigen": ("Eigen/",),
    "checkpoint": ("nlohmann/", "libdeflate.h", "sys/"),
    "torch_cuda": ("c10/",),
    "torch": ("torch/", "ATen/", "c10/"),
}
BETWEEN_VENDORS = {"nccl": ("cuda",), "torch_cuda": ("cuda", "torch")}
# a vendor's internal header: the other modules that may include it
SHARED_DETAIL = {"cuda/detail/check.hpp": ("nccl",), "cuda/detail/kernels.hpp": ("nccl",)}
# other modules: the system's headers that they may include; distx.hpp does not reach them
SYSTEM = {
    "posix": ("fcntl.h", "signal.h", "sys/mman.h", "unistd.h"),
    "connect/file": ("dirent.h", "poll.h", "sys/file.h", "sys/prctl.h", "sys/stat.h", "sys/wait.h"),
    "data/file": ("sys/stat.h",),
    "connect/tcp": ("arpa/inet.h", "netdb.h", "netinet/", "poll.h", "sys/eventfd.h", "sys/random.h", "sys/resource.h",
                    "sys/socket.h", "sys/stat.h"),
}
# a header that distx.hpp reaches: what it may include beyond the standard library
POSIX = {
    "core/detail/made_here.hpp": ("pthread.h", "unistd.h"),
    "posix/descriptor.hpp": ("fcntl.h", "unistd.h"),
    "posix/mapping.hpp": ("sys/mman.h",),
    "posix/process.hpp": ("signal.h",),
    "posix/unnamed_file.hpp": ("fcntl.h",),
}

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
# The end of an entry header: what the compiled form declares, or the definitions.
COMPILED = re.compile(r'^#ifn?def DISTX_COMPILED\n(#include "distx/\w+/detail/compiled\w*\.hpp"\n#else\n)?'
                      r'(#include "distx/[\w/]*definitions\.hpp"\n)+#endif\n\Z', re.MULTILINE)
# Headers that programs include besides entry headers, and that end as these do.
ENTRY_USERS = {"comm/best_communicator.hpp", "parallel/mesh_parallel.hpp"}
# The definitions of a template, which the backends that instantiate it include.
TEMPLATE_DEFINITIONS = {"comm/runtime/basic_communicator_definitions.hpp"}
# The refusal of compiler flags that every entry header includes.
REFUSAL = "core/detail/floating_point.hpp"
# Headers that differ between processors, the keyword that differs with the compiled part, what the CUDA Toolkit may lack, and
# the refusal.
CONDITIONAL = {"memory/lane_width.hpp", "core/version.hpp", "nccl/detail/profiler_range.hpp", REFUSAL}
# A namespace of distx outside the inline one.
UNVERSIONED = re.compile(r"^namespace distx\w*(?!\w|::inline DISTX_ABI\b)", re.MULTILINE)
VERSION = "core/version.hpp"
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef)\b", re.MULTILINE)


def headers(root):
    """Paths of all headers, relative to include/distx, sorted."""
    base = os.path.join(root, "include", "distx")
    found = []
    for folder, _, files in os.walk(base):
        found += [os.path.relpath(os.path.join(folder, file), base) for file in files if file.endswith((".hpp", ".cuh"))]
    return sorted(found)


def module_of(header):
    """The module of a header: of an entry header `mpi.hpp` it is `mpi`, of `distx.hpp` it is `entry`."""
    folder = os.path.dirname(header)
    if not folder:
        stem = os.path.splitext(header)[0]
        known = [module for module in (*VENDORS, *MODULES) if stem == module or stem.startswith(module + "_")]
        return known[0] if known else "entry"
    while folder not in MODULES and folder not in VENDORS and "/" in folder:
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
        return used in MODULES
    if user in VENDORS:
        return used in MODULES or used in BETWEEN_VENDORS.get(user, ())
    return used in MODULES[user]


def is_definitions(header):
    return header.endswith("definitions.hpp") and header not in TEMPLATE_DEFINITIONS


def is_internal(header):
    return "/detail/" in header and module_of(header) in VENDORS


def check_rules(known):
    """Rules and exceptions for what does not exist."""
    existing = {module_of(header) for header in known}
    for module in (*MODULES, *VENDORS):
        if module not in existing:
            yield f"tests/layering.py: there is no module '{module}': remove its rules"
    for header in SHARED_DETAIL:
        if header not in known:
            yield f"tests/layering.py: there is no {header}: remove its exception"


def folder_arrows(reached):
    """{(folder, folder it includes): an include of that kind}, inside modules; `reached`: what each header includes."""
    arrows = {}
    for header, used in ((header, used) for header in sorted(reached) for used in reached[header] if used in reached):
        user, below = os.path.dirname(header), os.path.dirname(used)
        inside = module_of(header) == module_of(used) and module_of(header) not in (user, below)
        own_detail = f"{below}/".startswith(f"{user}/detail/") or f"{user}/".startswith(f"{below}/detail/")
        if inside and user != below and not own_detail and not is_definitions(header):
            arrows.setdefault((user, below), f"{header} includes <distx/{used}>")
    return arrows


def check_folders(reached):
    """Folders inside a module that reach themselves through others."""
    arrows = folder_arrows(reached)
    for user, below in sorted(arrows):
        seen, queue = set(), [below]
        while queue:
            folder = queue.pop()
            seen.add(folder)
            queue += [to for at, to in arrows if at == folder and to not in seen]
        if user in seen:
            yield f"the folders '{user}' and '{below}' reach each other: {arrows[user, below]}"


def check_examples(root):
    for folder, _, files in os.walk(os.path.join(root, "examples")):
        for file in files:
            path = os.path.join(folder, file)
            with open(path, encoding="utf-8", errors="replace") as text:
                for _, name in INCLUDE.findall(text.read()) if file.endswith((".hpp", ".cpp", ".cu")) else ():
                    if name.startswith("distx/") and "/detail/" in name:
                        yield f"{os.path.relpath(path, root)}: examples include no internal header (<{name}>)"


def check_flags(reached):
    """Entry headers that do not refuse flags such as -ffast-math; `reached`: what each header includes."""
    refuses, growing = {REFUSAL}, True
    while growing:
        more = {header for header, used in reached.items() if not refuses.isdisjoint(used)} - refuses
        refuses |= more
        growing = bool(more)
    return [f"{header}: includes no header that includes {REFUSAL}, which refuses -ffast-math"
            for header in reached if is_entry(header) and header not in refuses]


def check_version(root):
    """The versions of version.hpp that are not meson.build's."""
    with open(os.path.join(root, "meson.build"), encoding="utf-8") as file:
        version = re.search(r"^  version: '(\d+)\.(\d+)\.(\d+)'", file.read(), re.MULTILINE).groups()
    major, minor, patch = map(int, version)
    for line in (f"#define DISTX_VERSION {10000 * major + 100 * minor + patch}",
                 *(f"#define DISTX_ABI v{'_'.join(version)}_{form}" for form in ("compiled", "header_only"))):
        if line not in read(root, VERSION).splitlines():
            yield f"{VERSION}: lacks '{line}', as meson.build has version {'.'.join(version)}"


def check(root, everything=True):
    """All broken rules, as sentences; with `everything` also rules that no module needs."""
    known = set(headers(root))
    wrong, reached = [], {}
    for header in sorted(known):
        module = module_of(header)
        text = read(root, header)
        if module != "entry" and module not in MODULES and module not in VENDORS:
            wrong.append(f"{header}: there is no module '{module}'; name it in tests/layering.py")
            continue
        own = COMPILED.sub("", text) if is_entry(header) or header in ENTRY_USERS else text
        if CONDITION.search(own) and header not in CONDITIONAL and not (is_entry(header) and module in VENDORS):
            wrong.append(f"{header}: preprocessor conditions are for entry headers only: a vendor's absence, and the definitions")
        if UNVERSIONED.search(text):
            wrong.append(f"{header}: open namespace distx as 'distx::inline DISTX_ABI'")
        if "DISTX_INLINE" in text and header not in CONDITIONAL and not is_definitions(header):
            wrong.append(f"{header}: DISTX_INLINE is for headers of definitions")
        reached[header] = []
        for bracket, name in INCLUDE.findall(text):
            if bracket == '"' and not name.startswith("distx/"):
                wrong.append(f'{header}: includes "{name}"; write the path from distx/ on')
            elif name.startswith("distx/"):
                used = name[len("distx/"):]
                reached[header].append(used)
                if used not in known:
                    wrong.append(f"{header}: includes <{name}>, which does not exist")
                elif is_entry(used) and not is_entry(header) and header not in ENTRY_USERS:
                    wrong.append(f"{header}: includes the entry header <{name}>; include what is used")
                elif is_definitions(used) and not (is_entry(header) or header in ENTRY_USERS or is_definitions(header)):
                    wrong.append(f"{header}: includes the definitions <{name}>, which entry headers include")
                elif is_internal(used) and module not in (module_of(used), *SHARED_DETAIL.get(used, ())):
                    wrong.append(f"{header}: <{name}> is internal to module '{module_of(used)}'")
                elif not may_include(module, module_of(used)):
                    wrong.append(f"{header}: module '{module}' must not know module '{module_of(used)}' (<{name}>)")
            elif name not in STANDARD and name not in POSIX.get(header, ()) and not name.startswith(
                    VENDORS.get(module, ()) + SYSTEM.get(module, ()) or ("\0",)):
                wrong.append(f"{header}: module '{module}' must not include <{name}>")

    if everything:
        wrong += check_version(root)
        wrong += check_flags(reached)
        wrong += check_folders(reached)
    closure, queue = set(), ["distx.hpp"] if "distx.hpp" in known else []
    while queue:
        header = queue.pop()
        if header in closure or header not in known:
            continue
        closure.add(header)
        queue += reached.get(header, [])
        for _, name in INCLUDE.findall(read(root, header)):
            if not name.startswith("distx/") and name not in STANDARD and name not in POSIX.get(header, ()):
                wrong.append(f"distx.hpp reaches {header}, which includes <{name}>: it must need the standard library only")
    for header in sorted(closure):
        if module_of(header) in VENDORS:
            wrong.append(f"distx.hpp reaches {header}, of the vendor '{module_of(header)}'")
    return wrong + list(check_examples(root)) + (list(check_rules(known)) if everything else [])


def self_test():
    good = {
        "distx.hpp": "#include <distx/comm/call.hpp>\n#include <vector>",
        "comm.hpp": '#include <distx/comm/call.hpp>\n#ifdef DISTX_COMPILED\n#include "distx/comm/detail/compiled.hpp"\n'
                    '#else\n#include "distx/comm/detail/definitions.hpp"\n#endif',
        "tensor.hpp": '#ifndef DISTX_COMPILED\n#include "distx/comm/detail/definitions.hpp"\n#endif',
        "comm/detail/compiled.hpp": "#include <distx/comm/call.hpp>",
        "comm/detail/definitions.hpp": "#include <distx/comm/call.hpp>\nDISTX_INLINE void f() {}",
        "mpi.hpp": "#if 1\n#include <distx/mpi/link.hpp>\n#endif",
        "core/error.hpp": "#include <string>",
        "memory/lane_width.hpp": "#if 1\n#endif",
        "comm/call.hpp": "#include <distx/core/error.hpp>\n#include <distx/comm/arena/slot.hpp>",
        "comm/arena/slot.hpp": "#include <distx/core/error.hpp>",
        "comm/decorators/checked.hpp": "#include <distx/comm/call.hpp>",
        "mpi/link.hpp": "#include <mpi.h>\n#include <boost/mpi.hpp>\n#include <distx/comm/call.hpp>",
        "cuda/stream.hpp": "#include <cuda_runtime.h>",
        "nccl/link.hpp": "#include <nccl.h>\n#include <distx/cuda/stream.hpp>",
        "cuda/detail/check.hpp": "#include <cuda_runtime.h>",
        "cuda/detail/kernels.hpp": "#include <cuda_runtime.h>",
        "nccl/detail/check.hpp": "#include <distx/cuda/detail/check.hpp>",
    }
    broken = {
        "a lower module": ({"core/error.hpp": "#include <distx/comm/call.hpp>"}, "'core' must not know module 'comm'"),
        "optim knows communication": ({"optim/sgd.hpp": "#include <distx/comm/call.hpp>"}, "'optim' must not know module 'comm'"),
        "data knows training": ({"data/loader.hpp": "#include <distx/parallel/a.hpp>", "parallel/a.hpp": ""}, "'data' must not know"),
        "comm knows its decorators": ({"comm/call.hpp": "#include <distx/comm/decorators/checked.hpp>"}, "'comm' must not know"),
        "vendor to vendor": ({"mpi/link.hpp": "#include <distx/cuda/stream.hpp>"}, "'mpi' must not know module 'cuda'"),
        "a module knows a vendor": ({"parallel/a.hpp": "#include <distx/mpi/link.hpp>"}, "'parallel' must not know module 'mpi'"),
        "vendor header elsewhere": ({"comm/call.hpp": "#include <mpi.h>"}, "'comm' must not include <mpi.h>"),
        "another vendor's header": ({"mpi/link.hpp": "#include <nccl.h>"}, "'mpi' must not include <nccl.h>"),
        "not standard": ({"core/error.hpp": "#include <unistd.h>"}, "must not include <unistd.h>"),
        "spaces in a directive": ({"core/error.hpp": "  #  include  <unistd.h>"}, "must not include <unistd.h>"),
        "closure": ({"distx.hpp": "#include <distx/comm/call.hpp>", "comm/call.hpp": "#include <mpi.h>"}, "distx.hpp reaches comm/call.hpp"),
        "another vendor's details": (
            {"cuda/detail/handle.hpp": "", "nccl/link.hpp": "#include <distx/cuda/detail/handle.hpp>"}, "internal to module 'cuda'"),
        "a vendor in distx.hpp": ({"distx.hpp": "#include <distx/mpi/link.hpp>"}, "distx.hpp reaches mpi/link.hpp"),
        "an entry header inside": ({"mpi/link.hpp": "#include <distx/distx.hpp>"}, "entry header"),
        "missing": ({"core/error.hpp": "#include <distx/core/none.hpp>"}, "does not exist"),
        "quotes": ({"core/error.hpp": '#include "error.hpp"'}, "write the path from distx/ on"),
        "no such module": ({"attic/box.hpp": ""}, "no module 'attic'"),
        "condition": ({"mpi/link.hpp": "#ifdef X\n#endif"}, "preprocessor conditions"),
        "a condition after the compiled form": (
            {"comm.hpp": '#ifndef DISTX_COMPILED\n#include "distx/comm/detail/definitions.hpp"\n#endif\n#include <vector>'},
            "preprocessor conditions"),
        "definitions in a header of the module": (
            {"comm/call.hpp": '#ifndef DISTX_COMPILED\n#include "distx/comm/detail/definitions.hpp"\n#endif'}, "preprocessor conditions"),
        "definitions for every program": (
            {"comm/call.hpp": '#include "distx/comm/detail/definitions.hpp"'}, "which entry headers include"),
        "a namespace without a version": ({"comm/call.hpp": "namespace distx::calls {\n}"}, "open namespace distx as 'distx::inline DISTX_ABI'"),
        "DISTX_INLINE elsewhere": ({"comm/call.hpp": "DISTX_INLINE void f() {}"}, "DISTX_INLINE is for headers of definitions"),
        "condition in distx.hpp": ({"distx.hpp": "#if 1\n#endif"}, "preprocessor conditions"),
    }
    def known_modules(root):
        return check(root, everything=False)

    examples = {
        "an example with internals": ({"examples/a.cpp": "#include <distx/comm/detail/a.hpp>\n"}, "examples include no internal header"),
    }
    unused = selftest.of(lambda known: list(check_rules(known)), set(SHARED_DETAIL) | {f"{module}/a.hpp" for module in (*MODULES, *VENDORS)},
                         {"a rule for nothing": ({"core/error.hpp"}, "there is no module 'optim': remove its rules")})
    flags = selftest.of(check_flags, {"mpi.hpp": ["core/error.hpp"], "core/error.hpp": [REFUSAL], REFUSAL: [], "core/a.hpp": []},
                        {"an entry header without the refusal": ({"mpi.hpp": ["core/error.hpp"], "core/error.hpp": [], REFUSAL: []},
                                                                 "mpi.hpp: includes no header")})
    below = {"parallel/detail/step/a.hpp": ["parallel/detail/base/b.hpp", "parallel/list.hpp", "comm/call.hpp"],
             "parallel/detail/base/b.hpp": ["parallel/list.hpp"], "parallel/list.hpp": ["parallel/detail/step/a.hpp"],
             "parallel/layers/a.hpp": ["parallel/layers/detail/b.hpp"], "parallel/layers/detail/b.hpp": ["parallel/layers/a.hpp"],
             "comm/call.hpp": []}
    folders = selftest.of(
        lambda reached: list(check_folders(reached)), below,
        {"a folder above": (below | {"parallel/detail/base/b.hpp": ["parallel/detail/step/a.hpp"]},
                            "'parallel/detail/base' and 'parallel/detail/step' reach each other: parallel/detail/base/b.hpp includes"),
         "a folder two above": (
             below | {"parallel/detail/base/b.hpp": ["parallel/detail/low/c.hpp"],
                               "parallel/detail/low/c.hpp": ["parallel/detail/step/a.hpp"]},
             "'parallel/detail/low' and 'parallel/detail/step' reach each other")})
    return unused + flags + folders + selftest.of_trees(known_modules, {}, examples) \
        + selftest.of_trees(known_modules, {os.path.join("include", "distx", name): text + "\n" for name, text in good.items()}, {
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
