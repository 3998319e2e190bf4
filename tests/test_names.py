"""A name stands for one thing, and a docstring names its thing.

A stack trace or a grep that shows a public class leads to one place. A docstring opens with the
thing itself, in a sentence that can be read at once.
"""

import ast
import re
from collections import defaultdict

from tests.product import ROOT, modules, tree_of

QUESTIONS = {"what", "who", "which", "whether", "where", "how", "that"}
MOST_WORDS = 15  # of a docstring's first sentence


def public_types(tree):
    """Names of classes, and of capitalised type aliases at module level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (t.id for t in targets if isinstance(t, ast.Name) and is_type_name(t.id))


def is_type_name(name):
    """`Wire`, not `_Wire`, `WIRE` or `wire`."""
    return name[0].isupper() and not name.isupper()


def docstrings(tree):
    """Line, name and docstring of whatever has one."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), getattr(node, "name", "the module"), text


def first_sentence(text):
    """Up to the first full stop, at most the first paragraph."""
    paragraph = text.split("\n\n")[0].strip()
    return re.split(r"(?<=[.?!])\s", paragraph)[0].split()


def is_question(words):
    """True if a sentence opens as a question does."""
    return words[0].strip("`,:").lower() in QUESTIONS


def test_no_two_modules_define_a_public_class_of_one_name():
    homes = defaultdict(set)
    for module in modules():
        for name in public_types(tree_of(module)):
            if not name.startswith("_"):
                homes[name].add(str(module))
    assert {name: sorted(found) for name, found in homes.items() if len(found) > 1} == {}


def test_a_docstring_names_its_thing_in_a_short_sentence():
    wrong = []
    for module in modules():
        for line, name, text in docstrings(tree_of(module)):
            words = first_sentence(text)
            if is_question(words) or len(words) > MOST_WORDS:
                wrong.append(f"{module}:{line} {name}: {' '.join(words)}")
    assert not wrong, f"{len(wrong)} docstrings to reword:\n" + "\n".join(wrong)


def test_a_docstring_of_tests_and_recipes_names_its_thing_too():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}: {text.splitlines()[0]}"
        for folder in ("tests", "recipes")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name, text in docstrings(ast.parse(path.read_text()))
        if is_question(first_sentence(text))
    ]
    assert not wrong, f"{len(wrong)} docstrings to reword:\n" + "\n".join(wrong)


def test_the_words_of_a_first_sentence_are_counted_up_to_its_full_stop():
    assert first_sentence("1.0 for a\nmatch. Else 0.\n\nMore.") == ["1.0", "for", "a", "match."]
    assert first_sentence("A head:\n\n    a picture") == ["A", "head:"]


def test_types_are_told_from_constants_and_variables():
    tree = ast.parse(
        "Wire = object\nWIRE = 1\nF = 2\nwire = 3\nMade: type = int\n_Own = 4\n"
        "class A:\n    class B: ...\n    Field = 1\n"
    )
    assert sorted(public_types(tree)) == ["A", "B", "Made", "Wire"]
