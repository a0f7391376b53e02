#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiles and runs the programs printed in README.md and docs/.

    tests/docs/blocks.py --build FOLDER [--list] [--part K/N] [FILE.md…]
    tests/docs/blocks.py --self-test

A block fenced as ```cpp must compile: it is a whole program, built against this tree and run. Those of README.md are built in the
header-only form, others in the compiled form with the libraries in FOLDER, a third of the work. A block fenced as ```c++ is
a fragment that is only shown. HTML comments directly before a ```cpp fence, invisible to the reader, say more:

    <!-- ranks: 2 -->             run under mpirun with 2 ranks (implies needs: mpi)
    <!-- needs: eigen -->         build with this vendor; reported as left out if the vendor is absent
    <!-- arguments: --steps 3 --> run with these arguments
    <!-- prints: text -->         the output must contain this text; may be repeated
    <!-- error: text -->          must not compile, and the only error must contain this text
    <!-- in: name -->             this block replaces the line `// name` of the last whole program
    <!-- file: a.hpp -->          not a program: a file for a later program of this page, which names it by `with`
    <!-- with: a.hpp b.cpp -->    these files are next to the program; the .cpp files are compiled with it

The status is 0 only if every block passed and at least one program was built. --part 1/3 to 3/3 have each page with programs once.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import compilers  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMMENT = re.compile(r"^\s*<!--\s*([a-z]+):\s*(.*?)\s*-->\s*$")
KEYS = {"ranks", "needs", "arguments", "prints", "error", "in", "file", "with"}


class Block:
    def __init__(self, where, notes):
        self.where, self.notes, self.lines = where, notes, []

    def all(self, key):
        return [value for name, value in self.notes if name == key]

    def one(self, key, otherwise=None):
        values = self.all(key)
        return values[-1] if values else otherwise


def blocks(path, text):
    """Yields every ```cpp block of a page."""
    notes, block, fence = [], None, None
    for number, line in enumerate(text.splitlines(), 1):
        if fence:
            if line.strip() == fence:
                if block:
                    yield block
                fence, block = None, None
            elif block:
                block.lines.append(line)
            continue
        opening = re.match(r"^\s*(`{3,})\s*([^\s`]*)", line)
        if opening:
            fence = opening.group(1)
            block = Block(f"{path}:{number}", notes) if opening.group(2) == "cpp" else None
            notes = []
        elif COMMENT.match(line):
            notes.append(COMMENT.match(line).groups())
        elif line.strip():
            notes = []
    if fence:
        raise SystemExit(f"{path}: a block is never closed")


def whole(block, last):
    """The text to compile: the block, or the last whole program with the block put in its place."""
    text = "\n".join(block.lines) + "\n"
    name = block.one("in")
    if not name:
        return text, None
    if last is None:
        return None, "there is no program before it to be put in"
    pattern = re.compile(rf"^\s*// {re.escape(name)}\s*$", re.MULTILINE)
    if len(pattern.findall(last)) != 1:
        return None, f"the program before it has no single line '// {name}'"
    return pattern.sub(lambda _: text, last), None


def compiled_form(build, vendors):
    """The flags of the compiled form, with the libraries of the core and of these vendors."""
    libraries = (os.path.join(build, "include", "distx", "compiled", f"libdistx{name}.a")
                 for name in ("", *(f"-{vendor}" for vendor in vendors)))
    return ["-DDISTX_COMPILED=extern", "-Wl,--start-group", *filter(os.path.exists, libraries), "-Wl,--end-group"]


def check(block, text, files, compiler, build, folder):
    """None if the block passes, 'absent' if a vendor is missing, otherwise what is wrong."""
    unknown = {name for name, _ in block.notes} - KEYS
    if unknown:
        return f"there is no note '{unknown.pop()}': the notes are {', '.join(sorted(KEYS))}"
    wanted = block.one("with", "").split()
    for name in wanted:
        if name not in files:
            return f"no block of this page before it is marked as the file '{name}'"
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(files[name])
    ranks = int(block.one("ranks", "0"))
    needed = set(" ".join(block.all("needs")).split()) | ({"mpi"} if ranks else set())
    flags = []
    for vendor in sorted(needed):
        more = compilers.vendor_flags(build, vendor, libraries=True) if build else None
        if more is None:
            return "absent"
        flags += more
    if build and not block.where.startswith("README.md:"):
        flags = compiled_form(build, sorted(needed | ({"cuda"} if "nccl" in needed else set()))) + flags
    source, program = os.path.join(folder, "block.cpp"), os.path.join(folder, "block")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    sentences = block.all("error")
    warnings = [*WARNINGS, *compilers.warning_errors(compiler)]
    command = [compiler, "-std=c++20", *(warnings if not sentences else []), "-I", os.path.join(compilers.ROOT, "include"),
               source, *(os.path.join(folder, name) for name in wanted if name.endswith(".cpp")), "-o", program, "-pthread", *flags]
    built = subprocess.run(command, env=dict(os.environ, LC_ALL="C"), capture_output=True, text=True, check=False)
    if sentences:
        errors = [line for line in compilers.without_versions(built.stderr).splitlines() if " error: " in line]
        if built.returncode == 0:
            return "it compiles, and must not"
        if len(errors) != 1 or not all(sentence in errors[0] for sentence in sentences):
            return f"the only error must say '{' '.join(sentences)}'; the compiler said:\n{built.stderr}"
        return None
    if built.returncode:
        return f"it does not compile:\n{built.stderr}"
    command = [program, *shlex.split(block.one("arguments", ""))]
    if ranks:
        command = [os.path.join(os.path.dirname(HERE), "mpirun"), "--timeout", "100", str(ranks), *command]
    try:
        ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "it did not end within 120 s"
    if ranks and ran.returncode == 77:
        return "absent"
    output = ran.stdout + ran.stderr
    if ran.returncode:
        return f"it ended with status {ran.returncode}:\n{output}"
    missing = [words for words in block.all("prints") if words not in output]
    return f"it must print '{missing[0]}', and printed:\n{output}" if missing else None


def pages():
    found = [os.path.join(compilers.ROOT, "README.md")]
    for folder, _, files in os.walk(os.path.join(compilers.ROOT, "docs")):
        found += [os.path.join(folder, file) for file in files if file.endswith(".md")]
    return sorted(path for path in found if os.path.exists(path))


def check_pages(texts, compiler, build):
    """(built, left out, complaints) over pages given as {name: text}."""
    good, absent, wrong = 0, 0, []
    for name, text in texts.items():
        last, files, used = None, {}, set()
        for block in blocks(name, text):
            if block.one("file"):
                files[block.one("file")] = "\n".join(block.lines) + "\n"
                continue
            used |= set(block.one("with", "").split())
            program, complaint = whole(block, last)
            if complaint is None:
                if not block.one("in"):
                    last = program
                with tempfile.TemporaryDirectory() as folder:
                    complaint = check(block, program, files, compiler, build, folder)
            if complaint == "absent":
                absent += 1
                print(f"left out: {block.where} (needs a vendor that is absent)")
            elif complaint:
                wrong.append(f"{block.where}: {complaint}")
            else:
                good += 1
                print(f"ok: {block.where}")
        wrong += [f"{name}: no program is built with the file '{file}'" for file in files if file not in used]
    return good, absent, wrong


def self_test(compiler):
    program = "#include <cstdio>\nint main() {\n  std::puts(\"hello\");\n  // here\n}\n"
    broken = "static_assert(sizeof(int) == 1, \"an int is no byte\");\n"

    def page(text, *notes, kind="cpp"):
        return "".join(f"<!-- {note} -->\n" for note in notes) + f"```{kind}\n{text}```\n"

    cases = {
        "good": (page(program, "prints: hello"), 1, None),
        "fragment": (page("nonsense\n", kind="c++"), 0, None),
        "does not compile": (page("nonsense\n"), 0, "does not compile"),
        "status": (page("int main() { return 3; }\n"), 0, "status 3"),
        "output": (page(program, "prints: goodbye"), 0, "must print"),
        "error": (page(program) + page(broken, "in: here", "error: an int is no byte"), 2, None),
        "wrong error": (page(program) + page(broken, "in: here", "error: an int is a byte"), 1, "the only error"),
        "two errors": (page(broken + broken, "error: an int is no byte"), 0, "the only error"),
        "no error": (page(program, "error: an int is no byte"), 0, "it compiles"),
        "no place": (page(program) + page("", "in: there"), 1, "no single line"),
        "misspelt": (page(program, "print: hello"), 0, "no note 'print'"),
        "vendor": (page(program, "needs: nothing-such"), 0, None),
        "file": (page("int one() { return 1; }\n", "file: one.cpp") + page("int one();\n" + program, "with: one.cpp"), 1, None),
        "broken file": (page("nonsense\n", "file: one.cpp") + page(program, "with: one.cpp"), 0, "does not compile"),
        "unused file": (page("int one;\n", "file: one.hpp") + page(program), 1, "no program is built with"),
        "missing file": (page(program, "with: one.hpp"), 0, "marked as the file"),
    }
    failed = 0
    for name, (text, built, sentence) in cases.items():
        good, _, wrong = check_pages({name: text}, compiler, None)
        if good != built or ((wrong != []) if sentence is None else not any(sentence in line for line in wrong)):
            failed += 1
            print(f"self-test '{name}' failed: expected {built} and {sentence!r}, got {good} and {wrong}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--list", action="store_true", help="only name the programs")
    parser.add_argument("--part", default="1/1", help="which pages")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    compiler = compilers.find_or_skip("any")
    if options.self_test:
        return 1 if self_test(compiler) else 0
    texts = {}
    for path in options.files or pages():
        with open(path, encoding="utf-8") as file:
            texts[os.path.relpath(path, compilers.ROOT)] = file.read()
    part, parts = map(int, options.part.split("/"))
    texts = dict([(name, text) for name, text in texts.items() if any(blocks(name, text))][part - 1::parts])
    if options.list:
        for name, text in texts.items():
            for block in blocks(name, text):
                print(block.where, *block.notes)
        return 0
    good, absent, wrong = check_pages(texts, compiler, options.build)
    for sentence in wrong:
        print(sentence)
    print(f"{good} built, {absent} left out, {len(wrong)} wrong")
    return 1 if wrong or good + absent == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
