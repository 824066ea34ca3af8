"""Facts of whole files."""

from __future__ import annotations

import pytest
from kvpatch.reading import Parsed, parse, read_module
from kvpatch.symbols import ANY


def test_names_are_bound_by_imports_definitions_and_assignments() -> None:
    facts = read_module(
        b"import a.b\nfrom . import c as d\nx, (y, *z) = 1, 2\nw: int\nv: int = 1\n"
        b"def f(): pass\nclass G: pass\nfrom h import *\n"
        b"try:\n    from i import j\nexcept ImportError:\n    j = None\n"
    )
    assert set(facts.bindings) == {"a", "d", "x", "y", "z", "v", "f", "G", "j"}
    assert (facts.bindings["d"].name, facts.bindings["d"].level) == ("c", 1)
    assert facts.bindings["j"].module == "i"
    assert [star.module for star in facts.stars] == ["h"]


def test_names_for_type_checkers_alone_are_kept_apart() -> None:
    facts = read_module(b"if TYPE_CHECKING:\n    from a import b\nelse:\n    b2 = 1\n")
    assert (set(facts.bindings), set(facts.typing)) == ({"b2"}, {"b"})


@pytest.mark.parametrize(
    ("hook", "names"),
    [
        ("if name in NAMES:\n        return 1", ("a", "b")),
        ("if name in NAMES.keys():\n        return 1", ("a", "b")),
        ("if name in {'c'}:\n        return 1", ("c",)),
        ("if name == 'd':\n        return 1", ("d",)),
        ("return load(name)", (ANY,)),
    ],
)
def test_a_modules_getattr_answers_the_names_that_it_compares_with(
    hook: str, names: tuple[str, ...]
) -> None:
    text = f"NAMES = {{'a': 1, 'b': 2}}\n\n\ndef __getattr__(name):\n    {hook}\n"
    assert read_module(text.encode()).forwarded == names


def test_definitions_are_looked_into_when_they_are_asked_for() -> None:
    parsed: list[bytes] = []

    def counting(content: bytes) -> Parsed:
        parsed.append(content)
        return parse(content)

    text = b"class A:\n    def f(self): return 1\nif x:\n    def g(): return 2\n"
    facts = read_module(text, counting)
    assert (list(facts.classes), list(facts.functions)) == (["A"], ["A.f", "g"])
    assert len(parsed) == 1
    assert facts.functions["g"].returns == ("2",)
    assert facts.functions["g"] is facts.functions["g"]
    assert len(parsed) == 2
    assert ("A" in facts.functions, len(facts.functions)) == (False, 2)
    with pytest.raises(KeyError):
        facts.functions["h"]


@pytest.mark.parametrize("text", [b"def (", b"x = '\x00'", b"(" * 5000])
def test_what_is_not_python_is_a_syntax_error(text: bytes) -> None:
    with pytest.raises(SyntaxError):
        read_module(text)
