"""The imports of statements, and the ways out that a failure has."""

from __future__ import annotations

import ast

import pytest
from kvpatch.statements import dotted, steps
from kvpatch.symbols import Choice, Dead, Import


def of(text: str) -> list[object]:
    return list(steps(ast.parse(text).body))


def test_imports_keep_line_dots_and_the_names_they_bind() -> None:
    assert of("import a.b as c\nfrom ..d import e as f, g\n") == [
        Import(1, "a.b", 0, bound="c"),
        Import(2, "d", 2, (("e", "f"), ("g", "g"))),
    ]


def test_an_except_for_import_errors_is_a_second_way_and_others_are_none() -> None:
    (choice,) = of("try:\n    import a\nexcept (ValueError, ImportError):\n    import b\n")
    assert choice == Choice(((Import(2, "a", 0),), (Import(4, "b", 0),)))
    (alone,) = of("try:\n    import a\nexcept ValueError:\n    pass\n")
    assert alone == Choice(((Import(2, "a", 0),),))


def test_a_handler_that_raises_is_no_way_out() -> None:
    (choice,) = of("try:\n    import a\nexcept ImportError:\n    raise\n")
    assert choice == Choice(((Import(2, "a", 0),), (Dead(4),)))


def test_each_branch_of_an_if_is_a_way_with_its_test() -> None:
    (choice,) = of("if x == 1:\n    import a\nelse:\n    raise ValueError\n")
    assert choice == Choice(((Import(2, "a", 0),), (Dead(4),)), ("x == 1", ""))


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_what_only_type_checkers_see_is_not_run(test: str) -> None:
    assert of(f"if {test}:\n    import a\nelse:\n    import b\n") == [Import(4, "b", 0)]


def test_what_stands_in_functions_is_not_run_and_in_classes_and_with_is() -> None:
    assert of("def f():\n    import a\n") == []
    assert of("class A:\n    import a\n") == [Import(2, "a", 0)]
    assert of("with x:\n    import a\n") == [Import(2, "a", 0)]


def test_only_names_have_a_dotted_name() -> None:
    assert dotted(ast.parse("a.b.c", mode="eval").body) == "a.b.c"
    assert dotted(ast.parse("a().b", mode="eval").body) == ""
