"""The values of ``--set`` as they are typed."""

from __future__ import annotations

import shlex

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.set_values import set_values


def test_values_are_read_as_yaml() -> None:
    given = ("a=1", ' b =" # #\\n"', "c=[x, y]", "d=", "e=a#b", "f='# #'")
    values = {"a": 1, "b": " # #\n", "c": ["x", "y"], "d": None, "e": "a#b", "f": "# #"}
    assert set_values(given) == values


@pytest.mark.parametrize("value", ["###", "# #", "a # b", "512 #", "'x' # y", "null # x"])
def test_a_value_that_yaml_cuts_at_a_comment_is_told_with_the_quotes_it_needs(value: str) -> None:
    with pytest.raises(KvpatchError, match="begins a comment") as caught:
        set_values((f"blend_special_str={value}",))
    assert (caught.value.code, caught.value.exit_code) == ("bad-set", ExitCode.USAGE)
    *_, word = shlex.split(caught.value.hint)
    assert set_values((word,)) == {"blend_special_str": value}


@pytest.mark.parametrize("text", ["chunk_size", "=1", "a=[", " =1"])
def test_what_is_no_value_is_usage(text: str) -> None:
    with pytest.raises(KvpatchError, match="is not KEY=VALUE"):
        set_values((text,))


def test_a_login_is_not_shown() -> None:
    for text in ("remote_url=redis://u:pw@h:1 # x", "remote_url=[redis://u:pw@h"):
        with pytest.raises(KvpatchError) as caught:
            set_values((text,))
        assert "pw" not in f"{caught.value.message} {caught.value.hint}"
