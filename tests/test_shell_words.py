"""Words against those that bash makes of the same text."""

from __future__ import annotations

import subprocess

import pytest
from kvpatch.shell_words import Operator, TooLong, Word, cut, literal

WORDS = [
    "a b  c\\ d",
    "'a b'c\"d e\"",
    "\"a\\\"b\\$c\\d\" '\\'",
    "a#b #c d",
    "$'a\\tb\\'c' x",
    "a\\\nb \"c\\\nd\"",
    "a=b --c=d,e {1..1}x a:b@c%d",
    "é \"ü ß\"",
    "'' \"\" x''",
]  # fmt: skip


def texts(text: str) -> list[str]:
    return [
        "".join(piece.text for piece in token.pieces)
        for token in cut(text)
        if isinstance(token, Word)
    ]


@pytest.mark.parametrize("text", [one for one in WORDS if "{1" not in one])
def test_bash_makes_the_same_words(text: str) -> None:
    ended = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True)
    assert texts(text) == ended.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a;b", ["a", ";", "b"]),
        ("a&&b||c|d&", ["a", "&&", "b", "||", "c", "|", "d", "&"]),
        ("(a)\nb", ["(", "a", ")", "\n", "b"]),
        ("a>b 2>&1 c<<<d &>e f", ["a", "c", "f"]),
        ("a <<E b\nvllm $'(\nE\nc", ["a", "b", "\n", "c"]),
        ("a <<-'E'\n\tx\n\tE\nc", ["a", "\n", "c"]),
        ("a # b; c\nd", ["a", "\n", "d"]),
        ("a # b \\\nd", ["a", "\n", "d"]),
        ("a$(b; c \")\" ) d", ["a$(b; c \")\" )", "d"]),
        ("\"${a:-\"b c\"}\" d", ['${a:-"b c"}', "d"]),
        ("\"$(echo \"a b\")\" c", ['$(echo "a b")', "c"]),
        ("$(\n# don't\na\n) b", ["$(\n# don't\na\n)", "b"]),
        ("$(a <<E\nit's )\nE\n) b", ["$(a <<E\nit's )\nE\n)", "b"]),
        ("$(case a in a) b;; (c) d;; esac) e", ["$(case a in a) b;; (c) d;; esac)", "e"]),
        ("$(a; (b) # )\n) c", ["$(a; (b) # )\n)", "c"]),
        ("$((16#ff << 2)) $(echo case) a", ["$((16#ff << 2))", "$(echo case)", "a"]),
        ("`a b` ((x<<2)) <(c d)", ["`a b`", "((x<<2))", "<(c d)"]),
    ],
)  # fmt: skip
def test_operators_stand_alone_and_what_is_put_in_stays_whole(text: str, shown: list[str]) -> None:
    found = [
        one.text if isinstance(one, Operator) else "".join(piece.text for piece in one.pieces)
        for one in cut(text)
    ]
    assert found == shown


def test_an_array_has_its_items() -> None:
    (word,) = cut("A=(a 'b c' # d\n e)")
    assert isinstance(word, Word)
    assert word.items is not None
    assert ["".join(piece.text for piece in one.pieces) for one in word.items] == ["a", "b c", "e"]


@pytest.mark.parametrize("text", ["'a", '"a', "`a", "$(a", "${a", '"$(a"', "a=(b", "$'a", "((a"])
def test_a_quotation_without_end_is_an_error_behind_all_before_it(text: str) -> None:
    tokens = cut(f"before\n{text}")
    assert next(tokens) == Word(next(cut("before")).pieces, 1)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="No closing"):
        list(tokens)


def test_a_word_knows_its_line_and_whether_it_is_bare() -> None:
    words = [one for one in cut("a\nif 'if' \\\n $A") if isinstance(one, Word)]
    assert [(one.line, one.bare) for one in words] == [(1, "a"), (2, "if"), (2, ""), (3, "")]
    assert literal("if").bare == ""


def test_commands_too_deep_inside_of_each_other_are_not_read() -> None:
    assert len(list(cut("$( " * 40 + ")" * 40))) == 1
    with pytest.raises(TooLong):
        list(cut("$( " * 3000 + ")" * 3000))
