"""Fixes put into texts: comments and order stay, a second pass changes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvpatch import key_history
from kvpatch.lint import lint
from kvpatch.mend import mended, write_over
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.rules import UNKNOWN_KEY, Finding, Fix
from kvpatch.schema import Schema
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import YamlFile, parse_yaml
from lmcache_config import schema_of


@cache
def schema() -> Schema:
    return schema_of("0.5.6")


def check(file: YamlFile) -> Sequence[Finding]:
    return lint(file, schema(), key_history.load(), Surroundings()).findings


def by(*fixes: Fix) -> tuple[list[list[Fix]], object]:
    """A check that asks for these fixes once."""
    left = [list(fixes)]

    def ask(_: YamlFile) -> Sequence[Finding]:
        return [Finding(UNKNOWN_KEY, "", fix=fix) for fix in (left.pop() if left else [])]

    return left, ask


def put_in(text: str, *fixes: Fix) -> str:
    _, ask = by(*fixes)
    return mended(parse_yaml(text), ask)[0].text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "fix", "after"),
    [
        (
            "# a\nold: 1  # b\n# c\nz: 2\n",
            Fix("rename", "old", "new"),
            "# a\nnew: 1  # b\n# c\nz: 2\n",
        ),
        ("a: x # y\n\nb: 2\n", Fix("set", "a", value=" # # "), 'a: " # # " # y\n\nb: 2\n'),
        ("a: 'q'\n", Fix("set", "b", value=[0.15]), "a: 'q'\nb: [0.15]\n"),
        ("a: 1", Fix("set", "b", value=True), "a: 1\nb: true\n"),
        ("", Fix("set", "b", value=True), "b: true\n"),
        ("---\na: 1\n", Fix("set", "a", value=2), "---\na: 2\n"),
        ("a: 1\r\n# c\r\nb: 2\r\n", Fix("set", "b", value=3), "a: 1\r\n# c\r\nb: 3\r\n"),
        ("\ufeffa: 1\n", Fix("set", "a", value=2), "\ufeffa: 2\n"),
        ("l:\n  - 1\n  - 2\na: 1\n", Fix("set", "a", value=2), "l:\n  - 1\n  - 2\na: 2\n"),
        ("l:\n- 1\na: 1\n", Fix("set", "a", value=2), "l:\n- 1\na: 2\n"),
        (
            "extra_config:\n    x: 1\n    y: 2\na: 1\n",
            Fix("set", "a", value=2),
            "extra_config:\n    x: 1\n    y: 2\na: 2\n",
        ),
        (
            "extra_config:\n  use_cufile: true # on\n  # next\n  y: 2\n",
            Fix("rename", "extra_config.use_cufile", "use_gds"),
            "extra_config:\n  # next\n  y: 2\nuse_gds: true  # on\n",
        ),
        (
            "extra_config:\n  y: 2\n  use_cufile: true\n  # last\nb: 1\n",
            Fix("rename", "extra_config.use_cufile", "use_gds"),
            "extra_config:\n  y: 2\n  # last\nb: 1\nuse_gds: true\n",
        ),
        (
            "extra_config:\n  use_cufile: true\nb: 1\n",
            Fix("rename", "extra_config.use_cufile", "use_gds"),
            "b: 1\nuse_gds: true\n",
        ),
        (
            "disk_io_threads: 3\nb: 1\n",
            Fix("rename", "disk_io_threads", "extra_config.disk_io_threads"),
            "b: 1\nextra_config:\n  disk_io_threads: 3\n",
        ),
        ("r: [0.15]\n", Fix("rename", "r", "s", 0.15, changes_value=True), "s: 0.15\n"),
        (
            "t: yes\nn: 0o17\nf: 1.50\na: 1\n",
            Fix("set", "a", value=2),
            "t: yes\nn: 0o17\nf: 1.50\na: 2\n",
        ),
        (
            "t: True\nu: FALSE\nn: ~\no:\np: null\nq: Null # c\na: 1\n",
            Fix("set", "a", value=2),
            "t: True\nu: FALSE\nn: ~\no:\np: null\nq: Null # c\na: 2\n",
        ),
        ("a: &x 1\nb: *x\nc: 1\n", Fix("set", "c", value=2), "a: &x 1\nb: *x\nc: 2\n"),
    ],
)
def test_a_fix_changes_what_it_is_about_and_nothing_else(before: str, fix: Fix, after: str) -> None:
    assert put_in(before, fix) == after


@pytest.mark.releases
def test_a_whole_file_is_mended_lints_clean_and_a_second_pass_changes_nothing() -> None:
    text = (
        "# the pool\nchunk_size: 256 # tokens\ncufile_buffer_size: 4294967296 # bytes\n"
        'gds_path: /mnt/x\n\n# blending\nenable_blending: "yes"\nblend_special_str:  # # \n'
        "extra_config:\n  # gds\n  use_cufile: true\n"
    )
    file, fixes = mended(parse_yaml(text), check)
    assert len(fixes) >= 7
    for comment in ("# the pool\n", "256 # tokens\n", "# bytes\n", "\n\n# blending\n"):
        assert comment in file.text
    assert not [one for one in check(file) if one.level.value != "note"]
    assert file.values["gds_buffer_size"] == 4096
    again, more = mended(file, check)
    assert (again.text, more) == (file.text, ())


BLENDS = """enable_blending: true
use_layerwise: true
blend_check_layers: [1]
blend_recompute_ratios: [0.15]
save_unfull_chunk: true
"""
QUOTED = 'blend_special_str: " # # "'


@pytest.mark.releases
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("blend_special_str: # #\n", f"{QUOTED}\n"),
        ("blend_special_str:  # # ", f"{QUOTED}\n"),
        (
            "# above\nblend_special_str:  # # \n# below\n\n# next\nchunk_size: 256 # mine\n",
            f"# above\n{QUOTED}\n# below\n\n# next\nchunk_size: 256 # mine\n",
        ),
        (
            "blend_special_str:  # #\n\n\nchunk_size: 256\n",
            f"{QUOTED}\n\n\nchunk_size: 256\n",
        ),
        (
            "blend_special_str:  # #   # between documents\nchunk_size: 256\n",
            f"{QUOTED} # between documents\nchunk_size: 256\n",
        ),
        ("blend_special_str: # #\t# tab\n", f"{QUOTED} # tab\n"),
    ],
)
def test_a_separator_that_became_a_comment_is_quoted_and_the_comment_goes(
    before: str, after: str
) -> None:
    file, _ = mended(parse_yaml(BLENDS + before), check)
    assert file.text == BLENDS + after
    assert check(file) == ()
    assert mended(file, check)[0].text == file.text


@pytest.mark.releases
def test_a_value_under_a_name_close_to_the_right_one_is_kept_with_its_comment() -> None:
    text = (
        "enable_blending: true\nblend_recompute_ratio: 0.3   # ours\nblend_check_layer: 2\n"
        "use_layerwise: true\nsave_unfull_chunk: true\n"
    )
    file, fixes = mended(parse_yaml(text), check)
    renamed = text.replace("ratio: 0.3  ", "ratios: [0.3]").replace("layer: 2", "layers: [2]")
    assert file.text == renamed
    assert [fix.kind for fix in fixes] == ["rename", "rename"]
    assert check(file) == ()


# Keys that more than one rule may write, each with values that call for one of these rules.
_WRITTEN_BY_SEVERAL = {
    "use_layerwise": ('"yes"', "false"),
    "save_unfull_chunk": ('"yes"', "false"),
    "local_cpu": ('"yes"', "true"),
    "max_local_cpu_size": ('"5GB"', "0", "-1", "5368709120"),
    "blend_special_str": ("", " # # ", '""'),
    "gds_buffer_size": ("4294967296", "0"),
    "retrieve_locations": ('"[GdsBackend]"', "[LocalCPUBackend]"),
    "blend_check_layers": ('"[2]"', ""),
    "blend_recompute_ratios": ('"[0.3]"', ""),
}


@pytest.mark.releases
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in _WRITTEN_BY_SEVERAL.items() for value in values],
)
@pytest.mark.parametrize("close", ["", "s", "x"])
def test_rules_that_write_the_same_key_keep_what_stands_under_a_close_name(
    name: str, value: str, close: str
) -> None:
    close = name[:-1] if close == "s" and name.endswith("s") else f"{name}{close}"
    before = parse_yaml(f"{close}: {value}\nenable_blending: true\ngds_path: /mnt/a\n")
    file, fixes = mended(before, check)
    assert not [one for one in check(file) if one.fix is not None]
    assert len({fix.key for fix in fixes}) == len(fixes) or close == name
    if close != name and before.values[close] is not None:
        # It was renamed, or the right key is left to the user.
        assert (name in file.values) is (close not in file.values)


@pytest.mark.releases
def test_a_comment_that_may_be_one_is_told_and_left() -> None:
    text = f"{BLENDS}blend_special_str: # # # what\n"
    file, fixes = mended(parse_yaml(text), check)
    assert (file.text, fixes) == (text, ())
    assert "is a comment (# # # what)" in check(file)[0].message


@pytest.mark.releases
@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "cufile_buffer_size",
                "enable_blending",
                "use_layerwise",
                "gds_path",
                "local_cpu",
                "blend_special_str",
                "max_local_cpu_size",
                "chunk_size",
                "controller_url",
                "gds_buffer_size",
                "disk_io_threads",
                "retrieve_locations",
                "extra_config",
            ]
        ),
        st.sampled_from(
            [
                "true",
                '"yes"',
                "no",
                "4096",
                "4294967296",
                "/mnt/a",
                '"5GB"',
                " # # ",
                "[1]",
                "",
                "null",
                "0",
                "{use_cufile: true}",
                "{gds_io_threads: 4, x: 1}",
            ]
        ),
    )
)
def test_mending_any_mixture_ends_and_is_idempotent(given_keys: dict[str, str]) -> None:
    text = "".join(f"{name}: {value} # {name}\n" for name, value in given_keys.items())
    file = parse_yaml(text)
    if not file.readable:
        return
    after, _ = mended(file, check)
    assert not [one for one in check(after) if one.fix is not None]
    assert mended(after, check)[0].text == after.text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\na: 2\n", "2"),
        ("a: 1\nb: 1\na: 2\nb: 2\n", "3, 4"),
        ("a: 0\nextra_config:\n  a: 1\n  a: 2\n", "4"),
    ],
)
def test_a_file_with_equal_keys_is_left_as_it_is_with_the_reason(text: str, lines: str) -> None:
    asked, ask = by(Fix("set", "a", value=3))
    with pytest.raises(KvpatchError, match=rf"twice \(line {lines}\)") as caught:
        mended(parse_yaml(text), ask)  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.REFUSED
    assert "then run it again" in caught.value.hint
    asked.clear()
    assert mended(parse_yaml(text), lambda _: ())[1] == ()


def test_a_fix_that_never_ends_is_refused() -> None:
    def again(file: YamlFile) -> Sequence[Finding]:
        number = file.values.get("a", 0) + 1
        return [Finding(UNKNOWN_KEY, "", fix=Fix("set", "a", value=number))]

    with pytest.raises(KvpatchError, match="asks for another") as caught:
        mended(parse_yaml("a: 0\n"), again)
    assert caught.value.exit_code is ExitCode.REFUSED


def test_a_file_is_replaced_whole_with_its_mode_and_through_a_link(tmp_path: Path) -> None:
    file = tmp_path / "real.yaml"
    file.write_text("a: 1\n")
    file.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    write_over(link, "a: 2\r\n")
    assert file.read_bytes() == b"a: 2\r\n"
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_folder_that_cannot_be_written_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KvpatchError, match="No space left") as caught:
        write_over(file, "a: 2\n")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert file.read_text() == "a: 1\n"
    assert list(tmp_path.iterdir()) == [file]
