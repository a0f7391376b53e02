#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds the API reference with Doxygen into OUTPUT/html.

    docs/reference.py OUTPUT [--root ROOT] [--version VERSION] [--allow-undocumented]
    docs/reference.py --self-test

Every warning of Doxygen is an error, and so is a public type, concept, function or constant (tests/names.py) that is not in
the reference, or has no comment; of overloads, one needs a comment. With --allow-undocumented names without a comment are only
printed. Exits with 77 if there is no doxygen.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tests"))
import names  # noqa: E402


def is_described(element):
    return any("".join(part.itertext()).strip() for name in ("briefdescription", "detaileddescription")
               for part in element.findall(name))


def is_public(name):
    return "detail" not in name.split("::")


def examine(folder):
    """The public names in Doxygen's XML, and the sentences about those without a comment, each with one place."""
    present, described, places = set(), set(), {}

    def note(name, element):
        present.add(name)
        if is_described(element):
            described.add(name)
        else:
            place = element.find("location")
            places.setdefault(name, "" if place is None else f"{place.get('file')}:{place.get('line')}: ")

    for file in sorted(os.listdir(folder)):
        if not file.startswith(("namespace", "class", "struct", "concept")) or not file.endswith(".xml"):
            continue
        compound = xml.parse(os.path.join(folder, file)).getroot().find("compounddef")
        name = compound.findtext("compoundname").split("<")[0].strip()
        if not is_public(name) or compound.get("prot") == "private":
            continue
        if compound.get("kind") != "namespace":
            note(name, compound)
            continue
        grouped = {id(member) for section in compound.iter("sectiondef") if section.get("kind") == "user-defined"
                   and section.findtext("header") for member in section}
        for member in compound.iter("memberdef"):
            if id(member) in grouped:  # `@name` documents all members of a group
                described.add(f"{name}::{member.findtext('name')}")
            if "->" not in member.findtext("argsstring", "").split(")")[-1] or member.findtext("type"):  # no deduction guide
                note(f"{name}::{member.findtext('name')}", member)
    return present, [f"{place}{name} has no comment" for name, place in sorted(places.items()) if name not in described]


def absent(root, present):
    """The sentences about public names that are not in the reference."""
    return [f"{declared[0].place}: {name} is public and not in the reference: declare it in a header that docs/Doxyfile.in "
            "does not exclude, or in a namespace detail"
            for name, declared in sorted(names.public_names(root).items()) if name not in present]


def build(doxygen, root, output, version):
    """Builds the reference; returns the warnings, with the names that are absent, and the names without a comment."""
    os.makedirs(output, exist_ok=True)
    with open(os.path.join(HERE, "Doxyfile.in"), encoding="utf-8") as file:
        text = file.read().replace("@root@", root).replace("@output@", output).replace("@version@", version)
    doxyfile = os.path.join(output, "Doxyfile")
    with open(doxyfile, "w", encoding="utf-8") as file:
        file.write(text)
    shutil.rmtree(os.path.join(output, "xml"), ignore_errors=True)
    done = subprocess.run([doxygen, doxyfile], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, check=False)
    wrong = [line for line in done.stderr.replace(root + os.sep, "").splitlines() if line.strip()]
    if done.returncode and not wrong:
        wrong = [f"doxygen failed with status {done.returncode}"]
    present, undocumented = examine(os.path.join(output, "xml"))
    return wrong + absent(root, present), undocumented


def self_test(doxygen):
    good = "#pragma once\nnamespace distx {\n/// A type.\nstruct A {};\n/// Returns 1.\nint one(int a);\nint one();\n" \
           "namespace detail {\nstruct B {};\n}\n}\n"
    broken = {
        "good": (good, None),
        "type": (good.replace("/// A type.\n", ""), "distx::A has no comment"),
        "function": (good.replace("/// Returns 1.\n", ""), "distx::one has no comment"),
        "concept": (good + "namespace distx { template <class T> concept C = true; }\n", "distx::C has no comment"),
        "parameter": (good.replace("/// Returns 1.", "/// Returns 1.\n/// @param b no such parameter"), "argument 'b'"),
        "command": (good.replace("/// Returns 1.", "/// Returns 1. @retrun"), "retrun"),
        "link": (good.replace("/// Returns 1.", "/// Returns 1, @ref nothing."), "nothing"),
    }
    hidden = "#pragma once\nnamespace distx {\n/// A type.\nstruct C {};\n}\n"
    broken = {name: ({"include/distx/a.hpp": text}, sentence) for name, (text, sentence) in broken.items()}
    for name, path, sentence in (("excluded folder", "detail/c.hpp", "distx::C is public and not in the reference"),
                                 ("excluded module", "comm/runtime/c.hpp", "distx::C is public and not in the reference"),
                                 ("kernels", "cuda/c.cuh", None)):
        broken[name] = ({"include/distx/a.hpp": good, f"include/distx/{path}": hidden}, sentence)
    failed = 0
    for name, (headers, sentence) in broken.items():
        with tempfile.TemporaryDirectory() as root:
            for path, content in (("README.md", "# distx\n[page](docs/page.md#part)\n"), ("docs/page.md", "# Page\n## Part\n"),
                                  ("docs/reference.dox", "/// @namespace distx\n/// @brief All.\n"), *headers.items()):
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
            shutil.copy(os.path.join(HERE, "doxygen_filter"), os.path.join(root, "docs"))
            wrong = sum(build(doxygen, root, os.path.join(root, "out"), "1"), [])
        if (wrong != []) if sentence is None else not any(sentence in line for line in wrong):
            failed += 1
            print(f"self-test '{name}' failed: expected {sentence!r}, got {wrong}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?")
    parser.add_argument("--root", default=os.path.dirname(HERE))
    parser.add_argument("--version", default="")
    parser.add_argument("--allow-undocumented", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    doxygen = shutil.which("doxygen")
    if doxygen is None:
        print("skipped: doxygen is absent")
        return 77
    if options.self_test:
        return 1 if self_test(doxygen) else 0
    if options.output is None:
        parser.error("OUTPUT is missing")
    output = os.path.abspath(options.output)
    wrong, undocumented = build(doxygen, options.root, output, options.version)
    for sentence in wrong + undocumented:
        print(sentence)
    if not options.allow_undocumented:
        wrong += undocumented
    if not wrong:
        print(os.path.join(output, "html", "index.html"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
