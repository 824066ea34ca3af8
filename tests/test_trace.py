"""Functions of a module followed on every path, with a meaning of a few words."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence

import pytest
from kvpatch.trace import State, Tracer, UnreadableError, Value


class Letters:
    """A call of ``mark("a")`` adds the fact a; ``yes`` and ``no`` are known conditions."""

    def relevant(self, name: str) -> bool:
        return name == "mark"

    def imported(self, module: str, name: str) -> Value:
        return f"{module}:{name}" if module.startswith("known") else None

    def import_fails(self, state: State, modules: Sequence[str]) -> State:
        return state.add(f"failed {','.join(modules)}") if modules else state

    def value(self, node: ast.expr, state: State) -> Value:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name):
                return state.value(name)
        return None

    def call(self, node: ast.Call, state: State) -> State:
        match node:
            case ast.Call(func=ast.Name(id="mark"), args=[argument]):
                return state.add(self.value(argument, state) or "unknown")
        return state

    def test(self, node: ast.expr, state: State) -> Iterable[tuple[bool, State]]:
        match node:
            case ast.Name(id="yes"):
                return [(True, state)]
            case ast.Name(id="no"):
                return [(False, state)]
        return [(True, state), (False, state)]


def _tracer(text: str) -> Tracer[Letters]:
    return Tracer(ast.parse(text), "Worker", Letters())


def _paths(body: str, before: str = "", after: str = "") -> set[str]:
    """The facts at the end of each path through a method with that body."""
    text = before + "\nclass Worker:\n    def run(self):\n"
    text += textwrap.indent(textwrap.dedent(body), "        ") + "\n" + after
    ends = _tracer(text).run("run", {State()})
    return {" ".join(sorted(state.facts)) for state in ends}


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("pass", {""}),
        ("mark('a')\nmark('b')", {"a b"}),
        ("mark('a'); mark('b')", {"a b"}),
        ("if x:\n    mark('a')", {"a", ""}),
        ("if x:\n    mark('a')\nelse:\n    mark('b')", {"a", "b"}),
        ("if x:\n    mark('a')\nelif y:\n    mark('b')", {"a", "b", ""}),
        ("if yes:\n    mark('a')\nelse:\n    mark('b')", {"a"}),
        ("if no:\n    mark('a')\nelse:\n    mark('b')", {"b"}),
        ("if mark('t'):\n    mark('a')", {"t", "a t"}),
        ("for x in mark('i'):\n    mark('a')", {"i", "a i"}),
        ("for x in y:\n    mark('a')\nelse:\n    mark('e')", {"e", "a e"}),
        ("while x:\n    mark('a')", {"", "a"}),
        ("while yes:\n    mark('a')", set()),
        ("while yes:\n    mark('a')\n    break", {"a"}),
        ("while x:\n    mark('a')\nelse:\n    mark('e')", {"e", "a e"}),
        (
            "for x in y:\n    if a:\n        break\n    mark('a')\nelse:\n    mark('e')",
            {"", "a", "e", "a e"},
        ),
        ("a and mark('a')", {"", "a"}),
        ("mark('a') or mark('b')", {"a", "a b"}),
        ("mark('a') if mark('t') else mark('b')", {"t", "a t", "b t", "a b t"}),
        ("[mark('a') for x in y]", {"", "a"}),
        ("with suppress(E):\n    mark('a')", {"", "a"}),
        ("while no:\n    mark('a')", {""}),
        ("with mark('c') as x, mark('d'):\n    mark('a')", {"a c d"}),
        ("return mark('a')\nmark('b')", {"a"}),
        ("return\nmark('b')", {""}),
        ("if x:\n    return\nmark('a')", {"", "a"}),
        ("if x:\n    mark('a')\n    raise E\nmark('b')", {"b"}),
        ("raise mark('a')", set()),
        ("x = mark('a')", {"a"}),
        ("x: int = mark('a')", {"a"}),
        ("x += mark('a')", {"a"}),
        ("self.x = mark('a')", {"a"}),
        ("assert mark('a')", {"a"}),
        ("y = [f(mark('a')), g(h=mark('b'))]", {"a b"}),
        ("mark(mark('a'))", {"a unknown"}),
        ("f = lambda: other('a')", {""}),
        ("def f():\n    other('a')", {""}),
        (
            "match x:\n    case 1:\n        mark('a')\n    case _:\n        mark('b')",
            {"", "a", "b"},
        ),
    ],
)
def test_every_statement_leads_where_it_leads(body: str, paths: set[str]) -> None:
    assert _paths(body) == paths


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("try:\n    mark('a')\nexcept E:\n    mark('x')", {"a", "x"}),
        ("try:\n    mark('a')\nexcept E:\n    return\nmark('b')", {"a b", ""}),
        ("try:\n    mark('a')\nexcept E:\n    raise\nmark('b')", {"a b"}),
        ("try:\n    mark('a')\nfinally:\n    mark('f')", {"a f"}),
        ("try:\n    mark('a')\nexcept E:\n    mark('x')\nelse:\n    mark('e')", {"a e", "x"}),
        (
            (
                "try:\n    mark('a')\nexcept E:\n    mark('x')\nexcept F:\n    mark('y')\n"
                "finally:\n    mark('f')"
            ),
            {"a f", "f x", "f y"},
        ),
    ],
)
def test_a_try_block_may_end_in_each_of_its_handlers(body: str, paths: set[str]) -> None:
    assert _paths(body) == paths


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("import known.a", "failed known.a"),
        ("from known import a", "failed known"),
        ("import known.a, other", "failed known.a,other"),
        ("x = 1", ""),
    ],
)
def test_a_handler_knows_which_imports_can_have_failed(line: str, fact: str) -> None:
    for caught in ("", " ImportError", " (KeyError, ModuleNotFoundError)", " Exception as e"):
        assert _paths(f"try:\n    {line}\nexcept{caught}:\n    pass") == {"", fact}
    assert _paths(f"try:\n    {line}\nexcept KeyError:\n    pass") == {""}


def test_a_name_is_known_from_its_assignment_to_the_next() -> None:
    assert _paths("x = 'a'\nmark(x)\nx = 'b'\nmark(x)\nx = f()\nmark(x)") == {"a b unknown"}


def test_a_name_assigned_on_one_branch_is_known_on_that_branch_alone() -> None:
    assert _paths("x = 'a'\nif y:\n    x = 'b'\nmark(x)") == {"a", "b"}


def test_a_function_of_that_name_hides_what_was_known() -> None:
    assert _paths("x = 'a'\ndef x():\n    pass\nmark(x)") == {"unknown"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from known import a", "a"),
        ("from known import a as b", "b"),
    ],
)
def test_an_imported_name_is_known(line: str, name: str) -> None:
    assert _paths(f"{line}\nmark({name})") == {"known:a"}
    assert _paths(f"mark({name})", before=line) == {"known:a"}


def test_a_module_imported_under_another_name_is_known() -> None:
    assert _paths("import known.a as b\nmark(b)") == {"known.a:"}


@pytest.mark.parametrize(
    "before",
    [
        "try:\n    from known import a\nexcept ImportError:\n    a = None",
        "if TYPE:\n    from known import a\nelse:\n    from known import a",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from known import a",
    ],
)
def test_an_import_under_a_condition_at_module_level_is_known(before: str) -> None:
    assert _paths("mark(a)", before=before) == {"known:a"}


def test_a_function_of_the_module_is_followed_with_its_arguments() -> None:
    before = "def helper(x, y='c'):\n    mark(x)\n    mark(y)\n"
    assert _paths("helper('a', 'b')", before) == {"a b"}
    assert _paths("helper(y='b', x='a')", before) == {"a b"}


def test_a_method_of_the_class_is_followed_past_self() -> None:
    after = "    def helper(self, x):\n        mark(x)\n"
    assert _paths("self.helper('a')\nmark('b')", after=after) == {"a b"}


def test_a_method_of_another_object_is_not_followed() -> None:
    after = "    def helper(self):\n        mark('a')\n"
    assert _paths("other.helper()", after=after) == {""}


def test_a_function_that_returns_early_goes_on_in_its_caller() -> None:
    before = "def helper():\n    if x:\n        return\n    mark('a')\n"
    assert _paths("helper()\nmark('b')", before) == {"b", "a b"}


def test_local_names_of_a_caller_are_not_those_of_the_called() -> None:
    before = "def helper():\n    mark(x)\n    x = 'h'\n"
    assert _paths("x = 'a'\nhelper()\nmark(x)", before) == {"a unknown"}


def test_a_function_that_calls_itself_ends() -> None:
    before = "def helper():\n    mark('a')\n    if x:\n        helper()\n"
    assert _paths("helper()", before) == {"a"}


def test_a_function_in_which_nothing_matters_is_not_followed() -> None:
    before = "def helper():\n    if a:\n        raise E\n    raise E\n"
    assert _paths("helper()\nmark('a')", before) == {"a"}


def test_a_method_that_is_not_there_changes_nothing() -> None:
    tracer = _tracer("class Worker:\n    pass\n")
    assert tracer.run("run", {State()}) == {State()}


def test_methods_of_another_class_are_not_the_workers() -> None:
    tracer = _tracer("class Other:\n    def run(self):\n        mark('a')\n")
    assert tracer.run("run", {State()}) == {State()}


@pytest.mark.parametrize(
    "body",
    [
        "f = lambda: mark('a')",
        "def f():\n    mark('a')",
        "class C:\n    mark('a')",
        "def f():\n    g = mark",
    ],
)
def test_what_matters_inside_an_inner_function_is_not_passed_over(body: str) -> None:
    with pytest.raises(UnreadableError):
        _paths(body)


def test_methods_run_one_after_the_other_keep_the_facts() -> None:
    tracer = _tracer(
        "class Worker:\n    def one(self):\n        x = 'a'\n        mark(x)\n"
        "    def two(self):\n        mark(x)\n"
    )
    states = tracer.run("two", tracer.run("one", {State()}))
    assert {state.facts for state in states} == {frozenset({"a", "unknown"})}


def test_paths_that_end_alike_are_followed_once() -> None:
    assert _paths("\n".join("if x:\n    y()" for _ in range(40)) + "\nmark('a')") == {"a"}


def test_too_many_different_paths_are_refused() -> None:
    body = "\n".join(f"if x:\n    mark('{number}')" for number in range(12))
    with pytest.raises(UnreadableError):
        _paths(body)


def test_a_state_is_the_same_whatever_the_order_in_which_it_came_to_be() -> None:
    one = State().bind("x", "1").bind("y", "2").add("a").add("b")
    other = State().bind("y", "2").bind("x", "1").add("b").add("a")
    assert one == other
    assert one.bind("x", None) == State().bind("y", "2").add("a").add("b")
    assert one.value("x") == "1"
    assert one.value("z") is None


@pytest.mark.parametrize(
    "body",
    [
        "while yes:\n    if x:\n        break\n    mark('a')\n    break",
        "for x in y:\n    break\n    mark('a')",
        "for x in y:\n    continue\n    mark('a')",
    ],
)
def test_what_comes_after_leaving_a_loop_round_may_not_have_happened(body: str) -> None:
    assert "" in _paths(body)
