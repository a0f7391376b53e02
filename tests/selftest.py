# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How the scripts that check something show, on made-up cases, that they can fail."""
import os
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def of(check, good, broken):
    """How many cases go wrong: `check` says nothing of `good`, and of each `broken` case (what, sentence) the sentence."""
    failed = 0
    for name, (case, sentence) in {"good": (good, None), **broken}.items():
        said = check(case)
        if (said != []) if sentence is None else not any(sentence in line for line in said):
            failed += 1
            print(f"self-test '{name}' failed: expected {sentence!r}, got {said}")
    return failed


def of_trees(check, good, broken):
    """The same of trees, {path: text}, for a `check` of their root; a broken one is the good one with some files changed."""

    def check_tree(tree):
        with tempfile.TemporaryDirectory() as root:
            for path, text in tree.items():
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return check(root)

    return of(check_tree, good, {name: ({**good, **change}, sentence) for name, (change, sentence) in broken.items()})


def main(findings, self_test, arguments):
    """The main function of a script: prints `findings(ROOT)`, a list of sentences, or runs its self-test. Returns the exit status."""
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    wrong = list(dict.fromkeys(findings(ROOT)))
    for sentence in wrong:
        print(sentence)
    print(f"{len(wrong)} findings")
    return 1 if wrong else 0
