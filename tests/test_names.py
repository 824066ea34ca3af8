"""Names that are surely bound, and names that nothing binds."""

from __future__ import annotations

import ast

import pytest
from kvpatch.names import local_names, surely_bound, type_checking_only, unbound_names

BOUND = {
    "import a.b.c": {"a"},
    "import a.b as c": {"c"},
    "from a import b, c as d": {"b", "d"},
    "x = y = 1": {"x", "y"},
    "x, (y, *z) = f()": {"x", "y", "z"},
    "x: int = 1": {"x"},
    "x: int": set(),
    "f(x := 1)": {"x"},
    "def f(a):\n    b = 1": {"f"},
    "async def f(): ...": {"f"},
    "class C:\n    b = 1": {"C"},
    "if f():\n    x = 1": set(),
    "if f():\n    x = 1\nelse:\n    x, y = 2, 3": {"x"},
    "if TYPE_CHECKING:\n    from a import b": set(),
    "if typing.TYPE_CHECKING:\n    pass\nelse:\n    from a import b": {"b"},
    "try:\n    import a\nexcept ImportError:\n    b = 1": {"a"},
    "try:\n    pass\nfinally:\n    b = 1": {"b"},
    "with f() as g:\n    x = 1": {"g", "x"},
    "for i in f():\n    x = 1": set(),
    "while f():\n    x = 1": set(),
}


@pytest.mark.parametrize(("text", "names"), BOUND.items())
def test_a_module_binds_what_its_statements_surely_bind(text: str, names: set[str]) -> None:
    assert surely_bound(ast.parse(text).body) == names


@pytest.mark.parametrize(
    "text",
    [
        "from a import *",
        "try:\n    from a import *\nexcept ImportError:\n    pass",
        "if f():\n    from a import *",
        "with f():\n    from a import *",
    ],
)
def test_a_star_import_may_bind_anything(text: str) -> None:
    assert surely_bound(ast.parse(text).body) is None
    function = ast.parse("def f():\n    return x").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert unbound_names(function, None) == ()


UNBOUND = {
    "return x": ("x",),
    "f(x)\ng(y)\nx": ("f", "x", "g", "y"),
    "return a, rest, more, key": (),
    "x = 1\nreturn x": (),
    "return len(__name__), __file__, __class__": (),
    "return known": (),
    "for i in (): pass\nreturn i": (),
    "with open('x') as g: return g": (),
    "try: pass\nexcept E as error: return error": ("E",),
    "from x import y\nreturn y": (),
    "import x.y\nreturn x": (),
    "return [i for i in ()]": (),
    "return lambda b: b + c": ("c",),
    "def inner(b=d) -> Never:\n    return b": ("d",),
    "class C(B): pass\nreturn C": ("B",),
    "x: Unknown = 1\ny: Unknown\nreturn x, y": (),
    "match a:\n    case [b, *c]: return b, c\n    case {'k': d, **e}: return d, e": (),
    "match a:\n    case int() as b: return b": (),
    "if TYPE_CHECKING:\n    return x\nelse:\n    return y": ("y",),
    "global z\nreturn z": (),
    "return a.b.c[d](e=1)": ("d",),
    "x += 1": (),
}


@pytest.mark.parametrize(("body", "names"), UNBOUND.items())
def test_a_function_reads_names_that_nothing_binds(body: str, names: tuple[str, ...]) -> None:
    lines = body.replace("\n", "\n    ")
    text = f"@decorated\ndef function(a: A, *rest: R, key: K = 1, **more):\n    {lines}\n"
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert unbound_names(function, frozenset({"known"})) == names


@pytest.mark.parametrize(
    ("test", "only"),
    [("TYPE_CHECKING", True), ("typing.TYPE_CHECKING", True), ("True", False), ("not T", False)],
)
def test_a_condition_for_type_checkers_is_known(test: str, only: bool) -> None:
    assert type_checking_only(ast.parse(test, mode="eval").body) is only


LOCAL = {
    "x = 1": {"x"},
    "x += 1": {"x"},
    "global x\nx = 1": set(),
    "for i in (): j = i": {"i", "j"},
    "import a.b as c, d.e": {"c", "d"},
    "def inner():\n    x = 1": {"inner"},
    "f = lambda x: (y := x)": {"f"},
    "try: pass\nexcept E as error: pass": {"error"},
    "print(x.y)": set(),
}


@pytest.mark.parametrize(("body", "names"), LOCAL.items())
def test_a_function_owns_the_names_it_binds_anywhere(body: str, names: set[str]) -> None:
    lines = body.replace("\n", "\n    ")
    function = ast.parse(f"def function(a, *rest, key=1):\n    {lines}\n").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert local_names(function) == names | {"a", "rest", "key"}
