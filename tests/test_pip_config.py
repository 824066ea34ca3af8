"""pip's files and variables: which are read, and which of two rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch.pip_config import files, read

# What pip itself says of it, in the order in which it loads them.
ASK = """
import json
from pip._internal.configuration import OVERRIDE_ORDER, Configuration
found = dict(Configuration(isolated=False).iter_config_files())
print(json.dumps([file for kind in OVERRIDE_ORDER for file in found.get(kind, [])]))
"""


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"XDG_CONFIG_HOME": "{0}/config", "XDG_CONFIG_DIRS": "{0}/a:{0}/b"},
        {"XDG_CONFIG_DIRS": ""},
        {"XDG_CONFIG_HOME": "{0}", "PIP_CONFIG_FILE": "{0}/none"},
        {"PIP_CONFIG_FILE": "{0}/there"},
    ],
)
def test_the_files_are_those_of_real_pip_in_its_order(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "there").touch()
    given = {name: value.format(tmp_path) for name, value in environ.items()}
    given["HOME"] = str(tmp_path)
    asked = subprocess.run([sys.executable, "-c", ASK], env=given, capture_output=True, check=True)
    assert [str(path) for path in files(given)] == json.loads(asked.stdout)


def test_the_null_device_means_no_file_at_all_and_variables_still_count() -> None:
    given = {"PIP_CONFIG_FILE": os.devnull, "PIP_TRUSTED_HOST": "a b"}
    assert files(given) == []
    assert read(given).values("trusted-host") == ["a", "b"]


def test_a_file_that_comes_twice_rules_where_it_comes_first(tmp_path: Path) -> None:
    first, second = (tmp_path / name / "pip" / "pip.conf" for name in "ab")
    given = {"XDG_CONFIG_DIRS": f"{tmp_path}/a:{tmp_path}/b", "PIP_CONFIG_FILE": str(first)}
    for path in (first, second):
        path.parent.mkdir(parents=True)
        path.write_text(f"[global]\nclient-cert = {path}\n")
    assert read(given).value("client-cert") == str(second)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["[global]\nclient-cert = a", "[global]\nclient-cert = b"], "b"),
        (["[global]\nclient-cert = a", "[global]\nclient-cert ="], ""),
        (["[install]\nclient-cert = a", "[global]\nclient-cert = b"], "a"),
        (
            ["[install]\nclient-cert = a", "[install]\nclient-cert =\n[global]\nclient-cert = b"],
            "b",
        ),
        (["[wheel]\nclient-cert = a", "[Global]\nclient-cert = b"], ""),
        (["[global]\n--Client_Cert = a", ""], "a"),
    ],
)
def test_the_last_that_says_something_rules(
    tmp_path: Path, texts: list[str], expected: str
) -> None:
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / name / "pip").mkdir(parents=True)
        (tmp_path / name / "pip" / "pip.conf").write_text(text)
    given = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": f"{tmp_path}/a:{tmp_path}/b"}
    found = read(given)
    assert (found.value("client-cert"), found.broken) == (expected, False)
    assert read({**given, "PIP_CLIENT_CERT": "c"}).value("client-cert") == "c"


@pytest.mark.parametrize(
    "text", [b"nonsense", b"[global]\nclient-cert = \xff", b"[global]\na_b=1\na-b=1"]
)
def test_a_file_that_pip_refuses_says_nothing_and_is_told_of(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "pip.conf").write_bytes(text)
    given = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    assert (read(given).value("client-cert"), read(given).broken) == ("", True)
    (tmp_path / "pip.conf").unlink()
    (tmp_path / "pip.conf").mkdir()
    assert not read(given).broken
