"""What patches say of a text, asked once for those that share a question."""

from __future__ import annotations

import ast

import pytest
from kvpatch.judgements import asked, judge, parsed
from kvpatch.patch import Judgement, Patch
from packaging.version import Version

RELEASE = Version("0.32.0")


class Counted:
    """A post-condition that counts how often it is asked."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.asked = 0

    def __call__(self, module: ast.Module, release: Version) -> Judgement:
        self.asked += 1
        holds = self.word in ast.unparse(module)
        return Judgement(holds, f"{self.word} in {release}")


def patch(patch_id: str, condition: Counted) -> Patch:
    return Patch(
        id=patch_id,
        distribution="vllm",
        targets=(),
        versions="",
        why="",
        how="",
        upstream="",
        retire_when="",
        post_condition=condition,
        faithful=lambda *_: Judgement(True, ""),
    )


@pytest.mark.parametrize(
    "text",
    [b"def f(:\n", b"x = '\xff'\n", b"x = 1\0\n", b"(" * 10_000, b"-" * 100_000 + b"1"],
    ids=["syntax", "encoding", "nul", "brackets", "signs"],
)
def test_what_does_not_parse_comes_with_the_reason(text: bytes) -> None:
    found = parsed(text)
    assert isinstance(found, str)
    assert found


def test_a_text_is_parsed() -> None:
    found = parsed(b"x = 1\n")
    assert isinstance(found, ast.Module)
    assert ast.unparse(found) == "x = 1"


def test_each_patch_is_told_what_its_condition_says() -> None:
    there, gone = Counted("x"), Counted("y")
    told = judge(parsed(b"x = 1\n"), RELEASE, [patch("KV901", there), patch("KV902", gone)])
    assert told == {
        "KV901": Judgement(True, "x in 0.32.0"),
        "KV902": Judgement(False, "y in 0.32.0"),
    }


def test_a_condition_that_patches_share_is_asked_once() -> None:
    condition = Counted("x")
    patches = [patch("KV901", condition), patch("KV902", condition)]
    told = judge(parsed(b"x = 1\n"), RELEASE, patches)
    assert [judgement.holds for judgement in told.values()] == [True, True]
    assert condition.asked == 1


def test_of_a_text_that_does_not_parse_nothing_is_asked_and_nothing_holds() -> None:
    condition = Counted("x")
    told = judge("invalid syntax", RELEASE, [patch("KV901", condition)])
    assert told == {"KV901": Judgement(False, "the file does not parse: invalid syntax")}
    assert condition.asked == 0


def test_a_text_that_is_too_deep_to_follow_does_not_hold() -> None:
    def question() -> Judgement:
        raise RecursionError

    assert not asked(question).holds
    assert "too deep" in asked(question).reason
