"""Edits of what an anchor finds, and the refusals where it does not find it once."""

from __future__ import annotations

import libcst as cst
import pytest
from kvpatch import anchors, rewrite
from kvpatch.outcome import Outcome
from kvpatch.patch import Refusal

MODULE = """
class Engine:
    def load(self, keys):
        # The first one.
        for key in keys:
            self.get(key, None)
        return keys

    def other(self):
        return self.get("x", None)
"""


def _parsed(text: str = MODULE) -> cst.Module:
    return rewrite.parse(text.encode())


def test_a_statement_is_replaced_at_any_depth_and_keeps_the_comment_above() -> None:
    module = _parsed()
    loop = "for key in keys:\n    self.get(key, None)"
    after = anchors.replace(
        module, "Engine.load", loop, lambda old: anchors.like(old, module, "# Now.\nself.all(keys)")
    )
    text = after.code
    assert "        # The first one.\n        # Now.\n        self.all(keys)\n" in text
    assert "for key" not in text


def test_an_expression_is_replaced_in_its_function_alone() -> None:
    after = anchors.replace_expression(_parsed(), "Engine.load", "self.get", lambda _: "self.fetch")
    assert after.code == MODULE.replace("self.get(key", "self.fetch(key")


def test_an_argument_is_put_in_its_place_and_the_layout_stays() -> None:
    module = _parsed("def f():\n    g(\n        1,\n        None,\n    )\n")
    put = anchors.replace_expression(
        module, "f", "g(1, None)", lambda call: anchors.argument(call, 1, "two")
    )
    more = anchors.replace_expression(
        put, "f", "g(1, two)", lambda call: anchors.argument(call, 2, "three")
    )
    assert more.code == "def f():\n    g(\n        1,\n        two,\n        three,\n    )\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(a):\n    pass\n", "def f(a, b=None):\n    pass\n"),
        ("def f(\n    a: int,\n):\n    pass\n", "def f(\n    a: int, b=None,\n):\n    pass\n"),
        (
            "def f(\n    a: int,\n    c: int,\n):\n    pass\n",
            "def f(\n    a: int,\n    c: int,\n    b=None,\n):\n    pass\n",
        ),
    ],
)
def test_a_parameter_is_added_at_the_end(before: str, after: str) -> None:
    assert anchors.add_parameter(_parsed(before), "f", "b=None").code == after


def test_a_parameter_that_is_there_is_a_conflict() -> None:
    with pytest.raises(Refusal, match="already has a parameter a") as caught:
        anchors.add_parameter(_parsed("def f(a):\n    pass\n"), "f", "a=None")
    assert caught.value.outcome is Outcome.CONFLICT


def test_a_method_is_added_at_the_end_of_its_class() -> None:
    after = anchors.append_method(_parsed(), "Engine", "def more(self):\n    pass")
    assert after.code == MODULE + "\n    def more(self):\n        pass\n"
    with pytest.raises(Refusal, match="already defines more"):
        anchors.append_method(after, "Engine", "def more(self):\n    pass")
    with pytest.raises(Refusal, match="the class Motor is defined 0 times") as caught:
        anchors.append_method(after, "Motor", "def more(self):\n    pass")
    assert caught.value.outcome is Outcome.MISSING


def test_an_anchor_that_is_not_there_is_missing_with_the_nearest_lines() -> None:
    with pytest.raises(Refusal, match=r"nowhere.*return keys") as caught:
        anchors.replace(_parsed(), "Engine.load", "return key", lambda old: [old])
    assert caught.value.outcome is Outcome.MISSING


def test_an_anchor_that_is_there_too_often_is_ambiguous() -> None:
    module = _parsed("def f():\n    g()\n    g()\n")
    with pytest.raises(Refusal, match="in 2 places, and 1 is expected") as caught:
        anchors.replace(module, "f", "g()", lambda old: [old])
    assert caught.value.outcome is Outcome.AMBIGUOUS
    assert anchors.replace(module, "f", "g()", lambda old: [old], times=2).code == module.code


def test_inner_functions_are_not_looked_into() -> None:
    module = _parsed("def f():\n    def g():\n        h()\n    return g\n")
    with pytest.raises(Refusal, match="nowhere"):
        anchors.replace(module, "f", "h()", lambda old: [old])
