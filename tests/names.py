#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the names that include/distx declares.

    tests/names.py              the findings
    tests/names.py --list       every public name, with the place of each declaration
    tests/names.py --self-test  made-up trees, each of which breaks one rule

Rules: a public name (in namespace distx, outside namespaces `detail`) has a doc comment at one of its declarations; fewer than
MOST public names are directly in namespace distx; no type name is declared for two types in one namespace, members of classes included,
except those in SHARED, which a concept or a convention asks of several classes.
"""
import os
import re
import sys

import layering
import selftest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MOST = 255
ABI = "::inline DISTX_ABI"  # the inline namespace of all names: see core/version.hpp
SHARED = {"Coefficients", "Guard", "Kind", "scope"}
# A class or an enumeration that a class or a function defines, as clang-format writes it; an explicit specialization has a `<`.
NESTED = re.compile(r"^ +(?:class|struct|union|enum(?: class)?) (?:\[\[[^\]]*\]\] )?(?:alignas\([^)]*\) )?(\w+)(?: final)?(?: :[^;{]*)? \{", re.MULTILINE)

NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)

TOKEN = re.compile(
    r"""(?P<doc>///(?!<)[^\n]*|/\*\*.*?\*/)|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<directive>^[ \t]*\#(?:[^\n\\]|\\.)*)"""
    r"""|(?P<string>R"\((?:.|\n)*?\)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[A-Za-z_]\w*|\d[\w'.]*)|(?P<sign>::|->|\[\[|\]\]|[^\s\w])""",
    re.MULTILINE | re.DOTALL)
SKIPPED = {"static_assert", "friend", "extern"}
BEFORE_A_NAME = {"template", "inline", "constexpr", "consteval", "constinit", "static", "class", "struct", "union", "enum", "concept",
                 "using", "explicit", "alignas", "typename", "const"}


class Declaration:
    def __init__(self, kind, name, namespaces, place, documented, defines):
        self.kind, self.name, self.namespaces = kind, name, namespaces
        self.place, self.documented, self.defines = place, documented, defines

    def qualified(self):
        return "::".join([*self.namespaces, self.name])


def without_brackets(words, opening, closing):
    """The words outside of brackets."""
    kept, depth = [], 0
    for word in words:
        if word == opening:
            depth += 1
        elif word == closing and depth:
            depth -= 1
        elif not depth:
            kept.append(word)
    return kept


def without_angles(words):
    """The words without template arguments: `<` opens after a name or `template`, outside of parentheses."""
    kept, depth, previous = [], 0, ""
    for word in words:
        if word == "<" and (depth or re.match(r"\w", previous)):
            depth += 1
        elif word == ">" and depth:
            depth -= 1
        elif not depth:
            kept.append(word)
        previous = word
    return kept


def classify(words):
    """What a declaration at namespace scope declares: (kind, name), or None if nothing of interest."""
    words = without_brackets(words, "[[", "]]")
    if not words or words[0] in SKIPPED or words[0] in "&|":  # the rest of a concept after its requires expression
        return None
    flat = without_brackets(words, "(", ")")
    plain = without_angles(flat)
    specialized = flat[:3] == ["template", "<", ">"]
    while plain and plain[0] == "template":
        plain = plain[1:]
    # requires clauses stand between a template head and the declaration; they are made of names, :: and && alone
    if not plain or specialized:
        return None
    if "requires" in plain and plain[0] == "requires":
        for i, word in enumerate(plain):
            if word in BEFORE_A_NAME or word in ("void", "auto", "bool", "int"):
                plain = plain[i:]
                break
    if plain[0] in SKIPPED or plain[0] == "namespace":
        return None
    if plain[0] == "using":
        return ("type", plain[1]) if len(plain) > 2 and plain[2] == "=" else None
    if plain[0] == "concept":
        return "concept", plain[1]
    if plain[0] in ("class", "struct", "union", "enum"):
        rest = [word for word in plain[1:] if word not in ("class", "struct", "final", "alignas")]
        if not rest or not re.match(r"[A-Za-z_]", rest[0]):
            return None
        name = rest[0]
        # a partial specialisation names arguments after its name
        position = flat.index(name, flat.index(plain[0]))
        if position + 1 < len(flat) and flat[position + 1] == "<":
            return None
        return "type", name
    if "operator" in plain:
        return None
    if "(" in words:
        flat_words = without_angles(words)
        if "=" in flat_words and flat_words.index("=") < flat_words.index("("):
            flat_words = flat_words[:flat_words.index("=")]
            return "value", flat_words[-1]
        before = flat_words[:flat_words.index("(")] if "(" in flat_words else plain
        if before and before[-1] in ("requires", "noexcept", "explicit", "alignas", "decltype"):
            rest = flat_words[flat_words.index("(") + 1:]
            depth = 1
            for i, word in enumerate(rest):
                depth += {"(": 1, ")": -1}.get(word, 0)
                if not depth:
                    return classify(rest[i + 1:])
        if len(before) < 2 or "->" in before or before[-2] in ("::", "~"):
            return None  # a deduction guide has no type before its name; a member is defined outside its class
        return "function", before[-1]
    if "=" in plain:
        plain = plain[:plain.index("=")]
    plain = [word for word in plain if re.match(r"[A-Za-z_]", word)]
    return ("value", plain[-1]) if len(plain) >= 2 else None


def declarations(path, text):
    """Yields the declarations at namespace scope of a header."""
    scopes = []  # (kind, names) of every open brace: "namespace" or "other"
    words, documented, line = [], False, 1
    parentheses = 0
    first_line, after_body = 0, False

    def namespaces():
        return [name for kind, names in scopes for name in names]

    def declare(defines):
        found = classify(words)
        if found and re.match(r"[A-Za-z_]", found[1]):
            return [Declaration(*found, namespaces(), f"{path}:{first_line}", documented, defines)]
        return []

    position = 0
    for token in TOKEN.finditer(text):
        line += text.count("\n", position, token.start())
        position = token.start()
        kind = token.lastgroup
        word = token.group()
        at_namespace = all(scope[0] == "namespace" for scope in scopes)
        if kind in ("comment", "directive"):
            continue
        if kind == "doc":
            if at_namespace and not words:
                documented = True
            continue
        if kind == "string":
            word = '""'
        if word == "{" and not parentheses:
            if at_namespace and words[:1] in (["namespace"], ["inline"]) and "namespace" in words:
                scopes.append(("namespace", [name for name in words if re.match(r"[A-Za-z_]", name) and name not in ("namespace", "inline")]))
                words, documented = [], False
                continue
            if at_namespace:
                yield from declare(True)
                # `= {…};`, `x{…};`: the rest up to the semicolon belongs to it; a function or class body ends by itself or with `;`
                words = ["\0"]
            scopes.append(("other", []))
            continue
        if word == "}" and not parentheses:
            if scopes:
                closed = scopes.pop()
                if all(scope[0] == "namespace" for scope in scopes):
                    words, documented, after_body = [], False, closed[0] == "other"
            continue
        if not at_namespace:
            continue
        if word == ";" and not parentheses:
            if words and words != ["\0"]:
                yield from declare(False)
            words, documented, after_body = [], False, False
            continue
        parentheses += {"(": 1, ")": -1}.get(word, 0)
        if not words:
            first_line = line
        words.append(word)


def all_declarations(root):
    for header in layering.headers(root):
        path = os.path.join("include", "distx", header)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            yield from declarations(path, file.read().replace(ABI, ""))


def is_public(declaration):
    return declaration.namespaces[:1] == ["distx"] and not {"detail", ""} & set(declaration.namespaces)


def public_names(root):
    """{qualified name: its declarations}"""
    names = {}
    for declaration in all_declarations(root):
        if is_public(declaration):
            names.setdefault(declaration.qualified(), []).append(declaration)
    return names


def direct(names):
    return [name for name in names if name.count("::") == 1]


def nested_types(root):
    """Yields (namespace, name, place) of each type that is defined inside a class or a function."""
    for header in layering.headers(root):
        path = os.path.join("include", "distx", header)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read().replace(ABI, "")
        for match in NESTED.finditer(text):
            opened = NAMESPACE.findall(text, 0, match.start())
            yield opened[-1] if opened else "", match[1], f"{path}:{text.count(chr(10), 0, match.start()) + 1}"


def findings(root):
    found, types = [], {}
    names = public_names(root)
    for name, declared in sorted(names.items()):
        if not any(declaration.documented for declaration in declared):
            found.append(f"{declared[0].place}: {name} has no doc comment")
    for declaration in all_declarations(root):
        if declaration.kind == "type":
            named = ("::".join(declaration.namespaces), declaration.name)
            types.setdefault(named, {}).setdefault(declaration.qualified(), declaration.place)
    for namespace, name, place in nested_types(root):
        if name not in SHARED:
            types.setdefault((namespace, name), {})[f"a nested type at {place}"] = None
    for (namespace, name), meanings in sorted(types.items()):
        if len(meanings) > 1:
            places = ", ".join(f"{qualified} ({place})" if place else qualified for qualified, place in sorted(meanings.items()))
            found.append(f"the type name '{name}' is declared more than once in namespace {namespace}: {places}")
    count = len(direct(names))
    if count >= MOST:
        found.append(f"namespace distx has {count} public names; fewer than {MOST} are wanted")
    return found


def report(root):
    names = public_names(root)
    count = len(direct(names))
    print(f"{count} public names in namespace distx, {len(names) - count} in namespaces in it")


def self_test():
    header = "include/distx/core/a.hpp"
    good = {
        header: "#pragma once\nnamespace distx {\n/// A box.\nstruct Box { int side; };\nnamespace detail {\nstruct Hidden {\n  enum class Kind : char { a };\n};\nstruct Other {\n  enum class Kind : char { b };\n};\nstruct Box {};\n}\n"
                "/// Returns it.\ntemplate <class T>\n  requires(sizeof(T) > 1)\n[[nodiscard]] inline int side_of(const T& box) { return box.side; }\n"
                "/// A number.\ninline constexpr int number = 3;\n/// An alias.\nusing Alias = Box;\n"
                "/// A concept.\ntemplate <class T>\nconcept Boxed = requires(T x) { x.side; };\n"
                "template <class T>\nclass Later;\n/// Declared before.\ntemplate <class T>\nclass Later {};\ntemplate <>\nclass Later<int> {};\n}\n",
    }
    def adding(text):
        return {"include/distx/core/b.hpp": "#pragma once\n" + text + "\n"}
    broken = {
        "class": (adding("namespace distx {\nclass Bare {};\n}"), "distx::Bare has no doc comment"),
        "function": (adding("namespace distx {\ntemplate <class T>\nvoid bare(T x) { x(); }\n}"), "distx::bare has no doc comment"),
        "declared function": (adding("namespace distx {\n[[nodiscard]] int bare(int (*f)(int));\n}"), "distx::bare has no doc comment"),
        "concept": (adding("namespace distx {\ntemplate <class T>\nconcept Bare = true;\n}"), "distx::Bare has no doc comment"),
        "constant": (adding("namespace distx {\ninline constexpr int bare = f(3);\n}"), "distx::bare has no doc comment"),
        "object": (adding("namespace distx {\ninline constexpr Box bare{};\n}"), "distx::bare has no doc comment"),
        "alias": (adding("namespace distx {\nusing Bare = int;\n}"), "distx::Bare has no doc comment"),
        "a comment of another": (adding("namespace distx {\n/// One.\nstruct One {};\nstruct Two {};\n}"), "distx::Two has no doc"),
        "nested": (adding("namespace distx::rules {\nstruct Bare {};\n}"), "distx::rules::Bare has no doc comment"),
        "after a class": (adding("namespace distx {\n/// One.\nstruct One { void f() {} int x = 0; };\nint bare(int);\n}"), "distx::bare has no"),
        "a nested type's name": (adding("namespace distx {\n/// Another.\nclass Another {\n  struct Box {\n  };\n};\n}"), "the type name 'Box' is declared"),
        "two nested types": (adding("namespace distx::detail {\nstruct One {\n  enum class Way : char { a };\n};\nstruct Two {\n  struct Way {\n  };\n};\n}"),
                             "the type name 'Way' is declared more than once"),
        "too many": (adding("namespace distx {\n" + "".join(f"/// N.\nint n{i}(int);\n" for i in range(MOST)) + "}"), "public names; fewer than"),
    }
    return selftest.of_trees(findings, good, broken)


def list_names():
    for name, declared in sorted(public_names(ROOT).items()):
        for declaration in declared:
            print(declaration.kind, name, declaration.place, "" if declaration.documented else "(no doc comment)")


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        list_names()
    else:
        if not sys.argv[1:]:
            report(ROOT)
        sys.exit(selftest.main(findings, self_test, sys.argv[1:]))
