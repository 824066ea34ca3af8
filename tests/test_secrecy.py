"""Nothing that may be a login is shown, and all else is."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from hypothesis import given
from hypothesis import strategies as st
from kvpatch import rules
from kvpatch.schema import EXTRA
from kvpatch.secrecy import HIDDEN, is_secret, masked, shown, without_logins
from linted import BLEND, run, schema
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
        ("", f"u:{S}@host"),
        ("", f"u:a b {S}@host"),
        ("remote_url", f"azure://a/b?sv=1&sig={S}"),
        ("remote_url", f"https://b.s3.amazonaws.com/k?X-Amz-Signature={S}&X-Amz-Date=1"),
        ("remote_url", f"https://b/k?X-Amz-Credential={S}"),
        ("remote_url", f"https://b/k?X-Amz-Security-Token={S}"),
        ("remote_url", f"https://b/k?AWSAccessKeyId={S}&Expires=1"),
        ("remote_url", f"https://b/k?GoogleAccessId={S}&Expires=1"),
        ("remote_url", f"https://b/k#access_token={S}"),
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
        ("remote_url", "azure://a/b?sv=2024&se=2030-01-01&sp=rl&sr=c"),
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


LOGINS = (f"redis://u:a'{S}@h:1", f'redis://u:a"{S}@h:1', f"redis://u:a {S}@h:1", f"u:{S}@h:1")


@pytest.mark.releases
@pytest.mark.parametrize("release", ["0.3.9", "0.5.6"])
@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("listed", [False, True])
def test_no_rule_prints_a_login_whichever_key_holds_it(
    release: str, login: str, listed: bool
) -> None:
    leaks: list[tuple[str, str]] = []
    for name in schema(release).keys:
        value = [login] if listed else login
        extra = json.dumps({f"lmcache.{name}": value, "use_layerwise": value})
        transfer = f'{{"kv_connector": "LMCacheConnectorV1", "kv_role": {json.dumps(login)}, '
        transfer += f'"kv_connector_extra_config": {extra}}}'
        lines = "" if name in BLEND else "local_cpu: false\n" * (name != "local_cpu")
        text = f"{BLEND}{lines}" if name not in BLEND else ""
        text += f"{json.dumps(name)}: {json.dumps(value)}\n"
        flags = ("enforce-eager", "kv-cache-dtype", "gpu-memory-utilization", "cc")
        serve = " ".join(
            shlex.quote(word)
            for word in (
                *("vllm", "serve", "m", "--kv-transfer-config", transfer),
                *(f"--{flag}={login}" for flag in flags),
            )
        )
        environ = {
            "PYTHONHASHSEED": login,
            "LMCACHE_CONFIG_FILE": login,
            f"LMCACHE_{name.upper()}": json.dumps(value) if listed else login,
        }
        told = []
        for linted in (
            run(text, release, serve=serve),
            run(text, release, environ=environ),
        ):
            told += [one.message for one in linted.findings]
            told += [one.fix.sentence for one in linted.findings if one.fix is not None]
        leaks += [(name, one) for one in told if S in one]
    assert leaks == []


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


def test_rules_print_values_through_what_hides_logins_alone() -> None:
    folder = Path(rules.__file__).parent
    names = [*folder.glob("lint_*.py"), folder / "transfer_fields.py", folder / "serve_config.py"]
    assert len(names) > 10
    assert [one.name for one in names if "spelt(" in one.read_text()] == []
