#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the links of README.md and docs/: every relative link leads to a file, and to a heading if it names one; every
page of docs/ is linked from docs/index.md; every picture of docs/ is shown somewhere.

    tests/docs/links.py [ROOT]
    tests/docs/links.py --self-test
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import selftest  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*)$", FENCE.sub("", text), re.MULTILINE):
        name = anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{name}-{number}"
        found.add(anchor)
    return found


def files(root, folder, ending):
    for where, _, names in os.walk(os.path.join(root, folder)):
        for name in sorted(names):
            if name.endswith(ending):
                yield os.path.relpath(os.path.join(where, name), root)


def check(root):
    wrong, linked = [], {}
    pages = ["README.md", *files(root, "docs", ".md")]
    texts = {}
    for page in pages:
        with open(os.path.join(root, page), encoding="utf-8") as file:
            texts[page] = file.read()
    for page, text in texts.items():
        linked[page] = set()
        for link in LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            linked[page].add(target)
            if not os.path.exists(os.path.join(root, target)):
                wrong.append(f"{page}: the link '{link}' leads nowhere")
            elif anchor and anchor not in anchors(texts.get(target, "")):
                wrong.append(f"{page}: the link '{link}' names a heading that {target} does not have")
    for page in texts:
        if page not in ("README.md", "docs/index.md") and page not in linked.get("docs/index.md", ()):
            wrong.append(f"{page}: docs/index.md does not link to it")
    for picture in files(root, "docs", (".svg", ".png")):
        if not any(picture in targets for targets in linked.values()):
            wrong.append(f"{picture}: no page shows it")
    return wrong


def self_test():
    good = {
        "README.md": "[index](docs/index.md)\n[d](docs/design.md#why-it-is-so) [x](https://example.com/a)\n```\n[not](a-link)\n```\n",
        "docs/index.md": "- [design](design.md)\n",
        "docs/design.md": "# Design\n## Why it is *so*\n![picture](pictures/a.svg) `[code](not a link)`\n",
        "docs/pictures/a.svg": "",
    }
    broken = {
        "no file": ({"docs/design.md": good["docs/design.md"] + "[a](absent.md)"}, "leads nowhere"),
        "no heading": ({"docs/index.md": "[design](design.md#how)\n"}, "does not have"),
        "heading in code": ({"docs/index.md": "[design](design.md#how)\n",
                             "docs/design.md": good["docs/design.md"] + "\n```\n# How\n```\n"}, "does not have"),
        "not in the index": ({"docs/other.md": "# Other\n"}, "docs/index.md does not link"),
        "unused picture": ({"docs/pictures/b.svg": ""}, "no page shows it"),
    }
    return selftest.of_trees(check, good, broken)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    wrong = check(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
