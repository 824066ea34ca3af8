"""Only what is seen to be pure is made callable."""

from __future__ import annotations

import ast

import pytest
from kvpatch.purecode import Logged, pure_expression, pure_functions

GOOD = '''
def to_bool(value: Optional[str]) -> bool:
    """Words."""
    parts: list[str] = []
    if isinstance(value, bool):
        return value
    return str(value).strip().lower() in ["true", "1"]

def loud(value):
    logger.warning("odd %s", value)
    return to_bool(value)

def check(self):
    assert self.name is not None
    self.done = True
'''


def functions(text: str, logged: Logged | None = None) -> dict[str, object]:
    module = ast.parse(text)
    names = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    return dict(pure_functions(module, names, logged))


def test_pure_functions_are_called_with_what_they_call_and_log() -> None:
    logged = Logged([])
    found = functions(GOOD, logged)
    assert found["to_bool"](" TRUE ") is True  # type: ignore[operator]
    assert found["loud"]("no") is False  # type: ignore[operator]
    assert logged.messages == ["odd no"]


def test_an_assertion_says_what_it_asked_for() -> None:
    class Config:
        name = None

    with pytest.raises(AssertionError, match=r"self\.name is not None"):
        functions(GOOD)["check"](Config())  # type: ignore[operator]


@pytest.mark.parametrize(
    "body",
    [
        "import os",
        "return open('/etc/passwd')",
        "return __import__('os')",
        "return value.__class__",
        "return getattr(value, '__class__')",
        "return getattr(value, name)",
        "return eval(value)",
        "return os.getenv(value)",
        "return json.dumps.__globals__",
        "return re.compile(value)",
        "global x",
        "while True: pass",
        "with value: pass",
        "yield value",
        "return unknown(value)",
        "return impure(value)",
        "class A: pass",
    ],
)
def test_what_could_reach_out_is_not_made_callable(body: str) -> None:
    text = f"def impure(value):\n    return open(value)\ndef one(value):\n    {body}\n"
    assert functions(text) == {}


@pytest.mark.parametrize(
    ("text", "given", "result"),
    [
        ("int", "7", 7),
        (
            "lambda x: x if isinstance(x, dict) else json.loads(x) if x else None",
            '{"a": 1}',
            {"a": 1},
        ),
        ("lambda x: [x] if x else []", "a", ["a"]),
    ],
)
def test_a_converter_may_be_an_expression(text: str, given: object, result: object) -> None:
    made = pure_expression(text, {})
    assert made is not None
    assert made(given) == result


@pytest.mark.parametrize("text", ["lambda x: open(x)", "make()", "a.b", "unknown"])
def test_an_expression_that_is_not_pure_is_none(text: str) -> None:
    assert pure_expression(text, {}) is None


def test_functions_that_call_each_other_in_a_circle_end() -> None:
    text = "def a(x):\n    return b(x) if x else 0\ndef b(x):\n    return a(False)\n"
    assert set(functions(text)) <= {"a", "b"}
