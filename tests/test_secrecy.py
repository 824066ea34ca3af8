"""Nothing that may be a login is shown, and all else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from hypothesis import given
from hypothesis import strategies as st
from kvpatch.schema import EXTRA
from kvpatch.secrecy import HIDDEN, is_secret, masked, shown, without_logins
from linted import schema
from releases import Release, lmcache_releases

S = "hunter77"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote_url", f"redis://:{S}@host:6379"),
        ("remote_url", f"redis://{S}:x@host:6379/0"),
        ("remote_url", f"redis://:a/{S}@host:6379"),
        ("remote_url", f"redis://:a b {S}@host:6379"),
        ("remote_url", f":{S}@host:6379"),
        ("remote_url", f"redis://host:6379?password={S}&db=1"),
        ("controller_url", [f"tcp://a:{S}@h", f"tcp://b:{S}@h"]),
        ("remote_url", f"redis-sentinel://u:{S}@a:1,u:{S}@b:2/m"),
        ("s3_secret_access_key", S),
        ("awsSecretKey", S),
        ("AWS_ACCESS_KEY_ID", S),
        ("redis_password", 12345),
        ("hf_token", [S]),
        (EXTRA, S),
        (EXTRA, f'{{"any": "{S}"}}'),
        (EXTRA, f"{{'password': '{S}'"),
        (EXTRA, {"a": {"b": [{"c": S}]}, "s3_token": [S], "known": f"x://{S}@h", "pwd": 1}),
        ("lmcache.extra_config", {"k": S}),
        ("kv_connector_extra_config", S),
        ("", {"api_key": S}),
    ],
)  # fmt: skip
def test_a_login_is_not_shown_in_any_form(name: str, value: Any) -> None:
    told = f"{masked(value, name, {'known'})} {shown(name, value, {'known'})}"
    assert S not in told
    assert "12345" not in told
    assert HIDDEN in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote_url", "redis://host:6379/0?db=1"),
        ("gds_path", "/mnt/a@b"),
        ("blend_min_tokens", 256),
        ("chunk_size", 1.5),
        ("blend_special_str", " # # "),
        ("blend_check_layers", [1, 2]),
        (EXTRA, {"gds_io_threads": 4, "known": "text", "on": True, "none": None}),
        ("enable_x", None),
    ],
)
def test_what_is_no_login_is_shown_as_it_is(name: str, value: Any) -> None:
    assert masked(value, name, {"known"}) == value


def test_the_host_stays() -> None:
    assert masked("redis://u:p@host:1/0", "remote_url") == f"redis://{HIDDEN}@host:1/0"


@pytest.mark.releases
@pytest.mark.parametrize("release", lmcache_releases())
def test_no_key_of_any_release_is_taken_for_a_password(release: Release) -> None:
    assert not [name for name in schema(release.version).keys if is_secret(name)]


@given(st.text(), st.text(alphabet=st.characters(categories=("L", "N", "S"))))
def test_a_text_of_others_holds_no_userinfo(before: str, login: str) -> None:
    told = without_logins(f"{before} http://{login}@host")
    assert told.endswith(f"://{HIDDEN}@host")


@pytest.mark.releases
def test_lint_prints_no_login_anywhere(tmp_path: Path) -> None:
    file, variables, log = (tmp_path / name for name in ("a.yaml", "a.env", "a.sarif"))
    file.write_text(
        f'remote_url: "redis://:{S}@h:1"\nextra_config: "{S}"\nlocal_disk: file:///a/\n'
        f"chunk_size: redis://:{S}@h\n"
    )
    variables.write_text(f"LMCACHE_REMOTE_URL=redis://u:{S}@other\nLMCACHE_EXTRA_CONFIG={S}\n")
    serve = json.dumps(
        {
            "kv_connector": "LMCacheConnectorV1",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.extra_config": {"any": S},
                "lmcache.remote_url": f"redis://:{S}@h",
            },
        }
    )
    given = ("lint", file, "--lmcache", "0.5.6", "--env-file", variables, "--sarif", log)
    found = ""
    for more in ((), ("--json",), ("--serve", f"vllm serve m --kv-transfer-config '{serve}'")):
        ended = kvpatch(*given, *more)
        found += ended.out + ended.err + log.read_text()
    assert "LM063" in found
    assert f"redis://{HIDDEN}@" in found
    assert S not in found


@pytest.mark.releases
@pytest.mark.parametrize("text", [f"*{S}", f"!{S} x", f"!{S}!x y", f"&a *{S}", f"!!int {S}"])
def test_a_broken_file_is_told_of_without_its_words(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"chunk_size: 256\nremote_url: {text}\n")
    ended = kvpatch("lint", file, "--lmcache", "0.5.6")
    assert ":2:" in ended.out
    assert "LM001" in ended.out
    assert S not in ended.out + ended.err


def test_a_setting_that_is_none_is_told_of_by_its_name() -> None:
    ended = kvpatch("profile", "blend", "--lmcache", "0.5.6", "--set", f"remote_url=[{S}")
    assert "remote_url=" in ended.err
    assert S not in ended.err
