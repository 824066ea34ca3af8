"""Facts of classes and functions."""

from __future__ import annotations

import ast

from kvpatch.definitions import class_facts, function_facts
from kvpatch.symbols import Class, Function


def function(text: str) -> Function:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return function_facts(node)


def a_class(text: str) -> Class:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    return class_facts(node)


def test_a_class_has_what_its_body_and_its_methods_give_it() -> None:
    facts = a_class(
        "class A(B, Generic[T]):\n"
        "    x: int\n    y = 1\n"
        "    def f(self):\n        self.z = 1\n        other.w = 2\n"
    )
    assert facts.bases == ("B", "Generic")
    assert set(facts.members) == {"x", "y", "f", "z"}


def test_whatever_way_a_method_assigns_counts() -> None:
    facts = a_class(
        "class A:\n"
        "    def f(self):\n"
        "        self.a, [self.b, *self.c] = self.d, self.e[0] = x\n"
        "        for self.g in y:\n"
        "            with z() as self.h, w():\n"
        "                self.i += 1\n"
        "        try:\n            self.j: int = 1\n"
        "        except E:\n            self.k = 2\n"
        "        else:\n            self.l = 3\n"
        "        finally:\n            self.m = 4\n"
        "        match x:\n            case 1:\n                self.n = 5\n"
        "        def inner():\n            self.o = 6\n"
        "        self.p.q = self.r\n"
    )
    assert set(facts.members) == {"f", *"abcdghijklmno"}
    assert facts.members["k"] == 10


def test_reads_that_are_asked_about_first_are_guarded() -> None:
    facts = function(
        "def f(r):\n"
        "    if hasattr(r, 'a'):\n        r.a\n        r.x\n"
        "    getattr(r, 'b', None)\n    r.b\n"
        "    getattr(r, 'c')\n    r.c\n"
        "    try:\n        r.d\n    except AttributeError:\n        pass\n"
        "    r.e\n"
    )
    assert {read.name: read.guarded for read in facts.reads} == {
        "a": True,
        "x": True,
        "b": True,
        "c": False,
        "d": True,
        "e": False,
    }


def test_calls_know_their_arguments_and_the_tests_they_stand_under() -> None:
    facts = function(
        "def f(c):\n    if c.on:\n        g(a, 1, k=2)\n    else:\n        g(*a)\n    h.i()\n"
    )
    told = {
        (call.callee, call.positional, call.keywords, call.spread, call.arguments, call.when)
        for call in facts.calls
    }
    assert told == {
        ("g", 2, ("k",), False, ("a", ""), ("c.on",)),
        ("g", 1, (), True, ("",), ()),
        ("h.i", 0, (), False, (), ()),
    }


def test_annotations_are_text_and_quotes_are_off() -> None:
    facts = function(
        "def f(a: 'A', b: int | None = None, *, c: C):\n    d: D = 1\n    return (a, b)\n"
    )
    assert facts.annotations == {"a": "A", "b": "int | None", "c": "C", "d": "D"}
    assert facts.returns == ("(a, b)",)
    assert facts.signature.required_keywords == ("c",)
    assert facts.signature.defaults == 1
