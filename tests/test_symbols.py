"""Whether a call fits a signature."""

from __future__ import annotations

import pytest
from kvpatch.symbols import Call, Signature


def signature(
    positional: tuple[str, ...] = ("a", "b"), defaults: int = 1, **more: object
) -> Signature:
    values = {
        "keywords": (),
        "required_keywords": (),
        "more_positional": False,
        "more_keywords": False,
        **more,
    }
    return Signature(positional, defaults, **values)  # type: ignore[arg-type]


def call(
    positional: int = 0, *keywords: str, spread: bool = False, names: tuple[str, ...] = ()
) -> Call:
    return Call(1, "f", positional, keywords, spread, names)


@pytest.mark.parametrize(
    ("target", "made", "why"),
    [
        (signature(), call(1), None),
        (signature(), call(2), None),
        (signature(), call(0, "a", "b"), None),
        (signature(), call(3), "takes 2 positional arguments, and gets 3"),
        (signature(), call(1, "c"), "has no parameter c"),
        (signature(), call(1, "a"), "gets a twice"),
        (signature(), call(0, "b"), "needs a"),
        (signature(), call(0, spread=True), None),
        (signature(more_positional=True), call(9), None),
        (signature(more_keywords=True), call(1, "c"), None),
        (signature(keywords=("c",), required_keywords=("c",)), call(1), "needs c"),
        (signature(keywords=("c",), required_keywords=("c",)), call(1, "c"), None),
        (signature(), call(2, names=("b", "a")), "takes a where it gets b"),
        (signature(), call(2, names=("x", "b")), None),
    ],
)
def test_a_call_is_refused_for_the_reason_that_it_would_fail_for(
    target: Signature, made: Call, why: str | None
) -> None:
    assert target.refuses(made) == why


def test_a_method_has_its_first_parameter_filled_in() -> None:
    method = signature(("self", "a"), 0)
    assert method.refuses(call(1), bound=True) is None
    assert method.refuses(call(2), bound=True) == "takes 1 positional arguments, and gets 2"
