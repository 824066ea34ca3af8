"""Files of every kind, as LMCache's YAML reader takes them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.yaml_source import MOST_BYTES, parse_yaml, read_now, read_yaml

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [
        ("- a\n- b\n", "top level is a list", 1),
        ("just words\n", "top level is a single value", 1),
        ("a: 1\n\tb: 2\n", "a tab stands", 2),
        ("a: 1\nb: [1, 2\n", "not YAML", 3),
        ("a: 1\n  b: 2\n", "not YAML", 2),
        ("a: 'x\n", "not YAML", 2),
        ("a: 1\n---\nb: 2\n", "second document", 2),
        ("a: !own 1\n", "not YAML", 1),
        ("a: *nowhere\n", "not YAML", 1),
        ("a: 1\nb: \x00\n", "control characters", 2),
        ("a: " + "[" * 3000 + "\n", "not YAML", 1),
        (BOMB, "unfold without end", 1),
        ("a: &a [*a]\n", "unfold without end", 1),
        pytest.param(
            "".join(f"k{i}: 1\n" for i in range(15_000)), "than 20000 values", 1, id="keys"
        ),
        pytest.param("a: [" + "0," * 25_000 + "]\n", "than 20000 values", 1, id="list"),
        ("? [1, 2]\n: 3\n? {a: 1}\n: 4\n", "not YAML", 1),
    ],
)
def test_what_lmcache_cannot_read_is_told_with_its_line(text: str, told: str, line: int) -> None:
    file = parse_yaml(text)
    assert not file.readable
    (problem,) = file.problems
    assert told in problem.message
    assert problem.line in (line, line - 1) or "[[" in text


def test_duplicate_keys_are_found_at_every_depth_and_the_last_one_counts() -> None:
    file = parse_yaml("a: 1\nextra_config:\n  x: 1\n  x: 2\na: 3\n")
    assert file.readable
    assert [(one.kind, one.line) for one in file.problems] == [("duplicate", 4), ("duplicate", 5)]
    assert file.values == {"a": 3, "extra_config": {"x": 2}}


def test_anchors_and_merges_are_what_yaml_makes_of_them() -> None:
    file = parse_yaml("a: &x {b: 1}\nextra_config:\n  <<: *x\n  c: 2\n")
    assert file.problems == ()
    assert file.values["extra_config"] == {"b": 1, "c": 2}
    assert file.entries["extra_config.b"].line >= 1


def test_every_key_has_its_place_and_what_yaml_makes_of_odd_ones() -> None:
    file = parse_yaml("# c\nchunk_size: 1\non: 2\n3: 4\nextra_config:\n  x: 1\n")
    assert (file.entries["chunk_size"].line, file.entries["chunk_size"].column) == (2, 1)
    assert (file.entries["extra_config.x"].line, file.entries["extra_config.x"].column) == (6, 3)
    assert file.entries["True"].value == 2
    assert file.entries["3"].value == 4


@pytest.mark.parametrize(
    ("text", "comment"),
    [
        ("a:  # # \n", "# # "),
        ("a:\n", None),
        ("a: null # x\n", None),
        ("a: ''\n", None),
        ("a: # # #", "# # #"),
    ],
)
def test_a_value_that_is_a_comment_is_told_from_one_that_is_empty(
    text: str, comment: str | None
) -> None:
    assert parse_yaml(text).entries["a"].comment == comment


def test_an_empty_file_has_nothing_and_no_problem() -> None:
    for text in ("", "\n\n", "# only a comment\n", "---\n"):
        file = parse_yaml(text)
        assert (file.values or {}) == {}
        assert file.readable


def test_binary_and_huge_files_are_no_configuration(tmp_path: Path) -> None:
    for content, told in (
        (b"\x80\x81\xff", "not UTF-8"),
        (b"\x7fELF\x00\x00", "control characters"),
        (b"a: 1\n" * (MOST_BYTES // 4), "no LMCache configuration"),
    ):
        path = tmp_path / "a.yaml"
        path.write_bytes(content)
        (problem,) = read_yaml(path).problems
        assert told in problem.message


def test_what_is_no_file_is_an_error_of_the_environment(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none.yaml", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(KvpatchError) as caught:
            read_yaml(path)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
        assert caught.value.hint


@pytest.mark.parametrize(
    "value",
    ['!!bool "SECRETzz9"', '!!timestamp "SECRETzz9"', f'!!int "{"SECRETzz9" * 20}"', "2020-13-45"],
)
def test_a_value_that_its_tag_does_not_fit_is_told_at_its_place_and_not_shown(value: str) -> None:
    (problem,) = parse_yaml(f"a: 1\nb: {value}\n").problems
    assert (problem.kind, problem.line, problem.column) == ("syntax", 2, 4)
    assert "can be made of the value" in problem.message
    assert "SECRET" not in problem.message


@pytest.mark.parametrize("text", [f"a: {'[' * 5000}", f"? 0x{'f' * 4000}\n: 1\n", "!!set {a: b}\n"])
def test_what_python_can_not_hold_is_told(text: str) -> None:
    assert [problem.kind for problem in parse_yaml(text).problems] == ["syntax"]


def test_keys_that_are_merged_have_their_own_place() -> None:
    found = parse_yaml("x: &b {p: 1, q: 2}\ny: &c {p: 3, r: 4}\n<<: [*b, *c]\nq: 5\n").entries
    places = {name: (one.value, one.line, one.column) for name, one in found.items()}
    assert places["p"] == (1, 1, 8)
    assert places["q"] == (5, 4, 1)
    assert places["r"] == (4, 2, 14)


def test_a_file_that_has_nothing_to_read_by_now_is_an_error() -> None:
    ours, theirs = os.pipe()
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):
            read_now(f"/proc/self/fd/{ours}")
    finally:
        os.close(ours)
        os.close(theirs)
