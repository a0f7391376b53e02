#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the English of comments, messages, test titles, pages, scripts and build files: no banned phrase, no comment that is a
fragment. It warns of sentences in comments of include/ that have more than LONGEST words.

    tests/language.py              the findings
    tests/language.py --self-test  made-up files, each of which breaks one rule

Write plain technical English with the words of the field: "Returns …", "Blocks until …"; "invalid root 7: must be in [0, 4)".
"""
import os
import re
import sys

import selftest

FOLDERS = ("include", "examples", "tests", "benchmarks")
CODE = (".hpp", ".cuh", ".cpp", ".cu")
SCRIPTS = ("tools", "cmake")
LONGEST = 30  # words of a sentence

# A pattern, and what to write instead. Patterns are looked for in lower case, in text whose `code` is taken out.
BANNED = [(re.compile(pattern), advice) for pattern, advice in [
    (r"(?<!users )(?<!readers )(?<!people )(?<!those )(?<!anyone )\bwho(ever)?\b", "name the actor: 'a rank that …'"),
    (r"(^|[.:;] )what(ever)? (is|are|was|were|has|had|it|they|a|an|the|this|other|mpi|nccl|cuda|one|comes|cannot|can|needs|differs|belongs|all|every|each|both)\b(?![^.]*\?)",
     "name the thing instead of 'what …'"),
    (r"(?<!there )(?<!may )\b(is|are|was|were|be) no (?!longer|more|less|fewer|greater|larger|smaller|such|different|need|better|worse|other)", "'is not a …' or 'invalid …'"),
    (r"\bhangs? on\b", "depends on"),
    (r"\b(rank|ranks|others?|thread|threads|process|processes|peers?|one|it|who|they|that|message|messages)s? (comes?|came|has come|have come|does not come|do not come)\b",
     "enters, joins, arrives"),
    (r"\bcom(es|ing) (late|too late)\b", "enters late, joins late"),
    (r"\b(is|are|was|were|be|been) told\b|\btells? (the )?(others?|it|them|all|everybody|nobody|every)\b", "notifies, is notified, publishes"),
    (r"\bhears?\b|\bheard\b", "receives, is notified, polls"),
    (r"\b(lies|lie) (in|on|at|beside|behind|there|between|outside|inside|next)\b", "is stored in, resides in"),
    (r"\blet(s|ting)?( \w+)? go\b", "release, destroy"),
    (r"\b(goes|go|going|went) on\b", "continues, is in progress"),
    (r"\bof (one's|its|their|his|a user's|the user's|the program's) own\b|\bof yours\b|\bof the user's\b", "custom, your own, the user's"),
    (r"\bhas not\b(?! (been|yet|\w+ed|come|begun|sent|done|made|taken|had|gone|run|met|set|left|got|seen|read|given|written|thrown|found|built|held|kept))", "does not have"),
    (r"\bat the most\b", "at most, peak"),
    (r"\b(so|as) many\b(?! (\w+ ){0,3}as\b)", "name the number: 'n ranks'"),
    (r"\bbehind\b", "after (order), in (place)"),
    (r"\bbeside\b", "next to, in addition to"),
    (r"\b(dealt|shared|deals?|shares?) (it |them )?out\b", "sharded, partitioned, assigned"),
    (r"\bfor ever\b", "indefinitely"),
    (r"\bends? in (an?|the) (\w+ )*(\w*error)\b", "throws, fails with"),
    (r"\bhand(s|ed)? (it |them )?(over )?to oneself\b|\bmessages? to oneself\b", "self-send"),
    (r"\bshorter floats?\b|\bshort floats?\b", "reduced-precision types"),
    (r"\bin the order of (a |the |one |its )?streams?\b", "stream-ordered"),
    (r"\bwithout a word\b", "unexpectedly"),
    (r"\bcould not be had\b|\bcannot be had\b|\bwas had\b", "is not available, allocation failed"),
    (r"\bwhich is said\b|\bsays so\b(?! where)", "documents, prints, reports"),
    (r"\bgiv(es?|ing) way\b", "backs off"),
    (r"\broll call\b", "consistency check"),
    (r"\bin little\b", "with small sizes"),
    (r"\brooms?\b", "module"),
    (r"\bsentences?\b", "message"),
    (r"\b(ranks?|those|one|ones|processes|others|members) (that|which) (are|is) left\b", "the surviving ranks"),
    (r"\bwhatever\b", "any, for every"),
    (r"\b(takes?|taken) (it |them |one |another )?for lost\b|\bfor lost\b", "considers failed"),
    (r"\bnoticed by\b", "causes, is detected by"),
]]
# A doc comment that begins so and has no main clause is a fragment.
FRAGMENT = re.compile(r"(Of|Between|From|To|In|On|At|By|With|Without|Where|What|Who|Whoever|Which|How|Like|As|Beside|Behind|Zeros|Stands|Says)\b[^.:]*[.:]?$")
NO_FRAGMENT = re.compile(r",|\b(returns?|throws?|blocks?|is|are|must|may|can|does|do)\b")

PIECE = re.compile(
    r"""(?P<comment>//[^\n]*)|(?P<block>/\*.*?\*/)|(?P<include>^[ \t]*\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<letter>'(?:[^'\\\n]|\\.)*')""",
    re.MULTILINE | re.DOTALL)
MARKED = re.compile(r"`[^`]*`|\b[A-Za-z_]\w*(::\w+)+|\b\w+\(\)|https?://\S+")


def texts_of_code(path, text):
    """Yields (line, kind, text) for the comments of a file, its messages (include/, examples/) and its test titles."""
    pending, last = [], 0
    for piece in PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        kind = piece.lastgroup
        if kind == "comment":
            own_line = not text[text.rfind("\n", 0, piece.start()) + 1:piece.start()].strip()
            words = piece.group().lstrip("/").removeprefix("<").strip()
            doc = piece.group().startswith("///") and not piece.group().startswith("///<")
            if pending and (line != last + 1 or not own_line):
                yield pending[0][0], pending[0][1], " ".join(entry[2] for entry in pending)
                pending = []
            if not words.startswith("SPDX"):
                pending.append((line, "doc" if doc else "comment", words))
            last = line
        elif kind == "string" and path.startswith(("include/", "examples/")) and " " in piece.group():
            yield line, "message", piece.group()[1:-1]
        elif kind == "string" and re.search(r"(TEST_CASE\w*|SUBCASE)\($", text[:piece.start()].rstrip()):
            yield line, "title", piece.group()[1:-1]
    if pending:
        yield pending[0][0], pending[0][1], " ".join(entry[2] for entry in pending)


def texts_of_page(text):
    """Yields (line, kind, text) for the paragraphs of a page, without its blocks of code."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip():
            yield number, "page", line.strip()


def texts_of_script(text):
    """Yields (line, kind, text) for the comments and strings of a file whose comments begin with #."""
    for number, line in enumerate(text.split("\n"), 1):
        for found in re.finditer(r"""(?:^|\s)#+ (.*)|"([^"]* [^"]*)"|'([^']* [^']*)'""", line):
            yield number, "script", next(filter(None, found.groups()))


def texts_of(path, text):
    if path.endswith(".md"):
        return texts_of_page(text)
    return texts_of_code(path, text) if path.endswith(CODE) else texts_of_script(text)


def long_sentences(path, text):
    """Yields (line, number of words) of sentences in a header's comments."""
    for line, kind, words in texts_of(path, text):
        if kind in ("doc", "comment"):
            for sentence in re.split(r"(?<=[.;:]) |@\w+", MARKED.sub("X", words)):
                if len(sentence.split()) > LONGEST:
                    yield line, len(sentence.split())


def findings_in(path, text):
    texts = texts_of(path, text)
    for line, kind, words in texts:
        plain = MARKED.sub("X", words)
        lower = plain.lower()
        for pattern, advice in BANNED:
            for found in pattern.finditer(lower):
                yield f"{path}:{line}: '{found.group().strip(' .:;')}': write {advice}"
        if kind == "doc" and path.startswith("include/"):
            first = re.split(r"(?<=\.) (?=[A-Z@])", plain)[0]
            if FRAGMENT.match(first) and not NO_FRAGMENT.search(first):
                yield f"{path}:{line}: '{words[:60]}' is a fragment: begin with a verb (\"Returns …\") or name the thing"


def files(root):
    for folder in FOLDERS:
        for place, _, names in os.walk(os.path.join(root, folder)):
            yield from (os.path.relpath(os.path.join(place, name), root) for name in sorted(names) if name.endswith(CODE + (".md",)))
    for place, _, names in os.walk(os.path.join(root, "docs")):
        yield from (os.path.relpath(os.path.join(place, name), root) for name in sorted(names) if name.endswith(".md"))
    for folder in SCRIPTS:
        for place, _, names in os.walk(os.path.join(root, folder)):
            yield from (os.path.relpath(os.path.join(place, name), root) for name in sorted(names) if not name.endswith((".pyc", ".md")))
    for folder in FOLDERS + ("docs",):
        for place, _, names in os.walk(os.path.join(root, folder)):
            yield from (os.path.relpath(os.path.join(place, name), root) for name in names if name == "meson.build")
    yield from (name for name in ("README.md", "meson.build", "meson_options.txt") if os.path.exists(os.path.join(root, name)))


def findings(root):
    found = []
    for path in files(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            found += findings_in(path, file.read())
    return found


def self_test():
    header, test, page, example = "include/distx/core/a.hpp", "tests/core/a_test.cpp", "docs/a.md", "examples/a.cpp"
    good = {
        header: '/// Returns the size.\nint f();\nconst char* m = "invalid root 7: must be in [0, 4)";\n',
        test: 'TEST_CASE("the size is that of the box") {\n  use("behind its back");\n}\n',
        page: "A page. `who` is a name.\n```cpp\n// behind\n```\n",
    }
    broken = {
        "comment": ({header: "// The ranks come, and who comes late waits.\n"}, "a.hpp:1: 'who'"),
        "doc comment": ({header: "/// Whoever unwinds\n/// does not come.\n"}, "a.hpp:1: 'whoever'"),
        "after code": ({header: "int i;  // lies in memory\n"}, "'lies in'"),
        "over two lines": ({header: "int i;\n/// The bits hang\n/// on the order.\n"}, "a.hpp:2: 'hang on'"),
        "message": ({header: 'const char* m = "root 7 is no rank";\n'}, "'is no'"),
        "title": ({test: 'TEST_CASE("a rank goes on") {}\n'}, "a_test.cpp:1: 'goes on'"),
        "page": ({page: "It is told to all.\n"}, "docs/a.md:1: 'is told'"),
        "fragment": ({header: "/// Of all ranks.\nint i;\n"}, "is a fragment"),
        "fragment of several words": ({header: "/// Between layers of the model.\nint i;\n"}, "is a fragment"),
        "message of an example": ({example: 'std::cerr << "who comes late waits";\n'}, "examples/a.cpp:1: 'who'"),
    }
    return selftest.of_trees(findings, good, broken)


if __name__ == "__main__":
    sys.exit(selftest.main(findings, self_test, sys.argv[1:]))
