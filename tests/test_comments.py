"""Comment lines: narrow, and no command line is broken in two."""

from __future__ import annotations

from kvpatch.comments import comment


def test_a_long_sentence_is_wrapped_under_its_mark() -> None:
    lines = comment("word " * 60, "- ")
    assert len(lines) > 2
    assert all(len(line) <= 98 for line in lines)
    assert lines[0].startswith("# - word")
    assert all(line.startswith("#   word") for line in lines[1:])


def test_a_command_line_stays_whole_and_keeps_its_spaces() -> None:
    command = "`kvpatch apply --python '/srv/a  b/bin/python' --state /var/lib/kvpatch`"
    for words in range(20):
        lines = comment("word " * words + f"run {command} first")
        assert sum(command in line for line in lines) == 1


def test_line_ends_of_a_text_are_none_of_the_comment() -> None:
    assert comment("a\nb\n") == ["# a b"]
