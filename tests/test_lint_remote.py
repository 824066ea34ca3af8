"""URLs of remote storage, on the adapters of every release."""

from __future__ import annotations

import ast

import pytest
from kvpatch import rules
from kvpatch.lint_remote import schemes
from linted import only, run
from packaging.version import Version
from releases import Release, lmcache_releases, whole_release

pytestmark = pytest.mark.releases

_FUNCTION, _ASKS = ast.FunctionDef, ("__init__", "startswith")
FOLDER = "lmcache/v1/storage_backend/connector/"


def adapters(release: str) -> set[str]:
    """What the adapters of a release are made for, or look for at a URL's beginning."""
    wheel = whole_release("lmcache", release)
    paths = [
        path
        for path in wheel.entries
        if path.startswith(FOLDER) and path.endswith(("_adapter.py", "__init__.py"))
    ]
    wheel.prefetch(paths)
    trees = [ast.parse(wheel.read(path) or b"") for path in paths]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, _FUNCTION)]
    texts = {
        node.value
        for function in functions
        if function.name in ("__init__", "can_parse")
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in _ASKS
        for argument in call.args
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text.partition("://")[0] for text in texts if "://" in text}


@pytest.mark.parametrize("release", lmcache_releases())
def test_every_release_has_the_adapters_that_are_told(release: Release) -> None:
    assert schemes(Version(release.version)) == adapters(release.version)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis:6379", "write redis:// in front of the host"),
        ("http://x:1", "it begins with redis:// or so"),
        ("${REDIS_URL}", "begins with"),
        ("Redis://x:1", "write redis://"),
        ("redi://x:1", "the nearest is redis://"),
        ("u:secret@h:1", '"***@h:1"'),
    ],
)
def test_a_url_that_no_adapter_takes_is_an_error(url: str, told: str) -> None:
    found = only(run(f"remote_url: '{url}'\n"), rules.REMOTE_URL)
    assert told in found.message
    assert "secret" not in found.message


@pytest.mark.parametrize(
    ("release", "url", "right"),
    [
        ("0.5.6", "redis://h:1", True),
        ("0.5.6", "lm://h:1", True),
        ("0.5.7rc2", "lm://h:1", False),
        ("0.3.7", "valkey://h:1", False),
        ("0.3.9", "valkey://h:1", True),
        ("0.5.6", "", True),
    ],
)
def test_each_release_has_adapters_of_its_own(release: str, url: str, right: bool) -> None:
    found = run(f"remote_url: '{url}'\n", release).findings
    assert right is not any(one.rule is rules.REMOTE_URL for one in found)


def test_a_plugin_may_take_any_url() -> None:
    found = run("remote_url: own://x\nremote_storage_plugins: [own]\n").findings
    assert rules.REMOTE_URL not in {one.rule for one in found}
