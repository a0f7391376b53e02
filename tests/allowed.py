# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The findings of tests/language.py and tests/names.py that are still allowed: a list that can only shrink.

tests/allowed.txt has one line for each place with old findings: "COUNT SCRIPT PLACE". More findings than that are an error, and so
are fewer: `tests/language.py --shrink` (or names.py) then writes the smaller number, and never a larger one.
"""
import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(root):
    """{(script, place): count}"""
    path = os.path.join(root, "tests", "allowed.txt")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        lines = [line.split(" ", 2) for line in file.read().splitlines()]
    return {(script, place): int(count) for count, script, place in lines}


def write(root, allowed):
    with open(os.path.join(root, "tests", "allowed.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{count} {script} {place}\n" for (script, place), count in sorted(allowed.items()) if count)


def beyond(root, script, findings):
    """The sentences of {place: [sentence, …]} that are not allowed, and those about allowances that are too large."""
    allowed = {place: count for (owner, place), count in read(root).items() if owner == script}
    wrong = []
    for place, sentences in sorted(findings.items()):
        if len(sentences) > allowed.get(place, 0):
            wrong += sentences
            if place in allowed:
                wrong.append(f"{place}: has {len(sentences)} findings, and {allowed[place]} are allowed (tests/allowed.txt)")
    for place, count in sorted(allowed.items()):
        found = len(findings.get(place, []))
        if found < count:
            wrong.append(f"{place}: has {found} findings where {count} are allowed: run tests/{script}.py --shrink")
    return wrong


def shrink(root, script, findings):
    allowed = read(root)
    for owner, place in list(allowed):
        if owner == script:
            allowed[owner, place] = min(allowed[owner, place], len(findings.get(place, [])))
    write(root, allowed)


def main(script, findings, self_test, arguments, root=ROOT, report=None):
    """The main function of a script. `findings(root)` gives {place: [sentence, …]}."""
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    found = findings(root)
    if report:
        report(root)
    if arguments == ["--all"]:
        wrong = [sentence for sentences in found.values() for sentence in sentences]
    elif arguments == ["--begin"]:  # for a new rule: allows what there is
        allowed = {key: count for key, count in read(root).items() if key[0] != script}
        write(root, {**allowed, **{(script, place): len(sentences) for place, sentences in found.items()}})
        wrong = []
    else:
        if arguments == ["--shrink"]:
            shrink(root, script, found)
        wrong = beyond(root, script, found)
    for sentence in dict.fromkeys(wrong):
        print(sentence)
    old = sum(count for (owner, _), count in read(root).items() if owner == script)
    print(f"{len(wrong)} findings" + (f", and {old} that tests/allowed.txt allows" if old else ""))
    return 1 if wrong else 0
