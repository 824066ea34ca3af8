"""Keys that take one of a few words, against the code of every release that takes them."""

from __future__ import annotations

import ast
import re

import pytest
from kvpatch import rules
from kvpatch.lint_choices import CHOICES
from kvpatch.rules import Level
from linted import ids, only, run, schema, value
from packaging.version import Version
from releases import lmcache_releases, whole_release

pytestmark = pytest.mark.releases

GDS = "gds_path: /mnt/a\ngds_buffer_size: 1024\nlocal_cpu: false\n"
P2P = (
    "enable_p2p: true\np2p_host: h\np2p_init_ports: [1]\np2p_lookup_ports: [2]\n"
    "enable_controller: true\nlmcache_instance_id: a\ncontroller_pull_url: h:3\n"
    "controller_reply_url: h:4\nlmcache_worker_ports: [5]\n"
)
USED = {
    "gds_backend": GDS,
    "gds_path_sharding": GDS,
    "local_disk_path_sharding": "local_disk: /x/\nmax_local_disk_size: 5\n",
    "remote_serde": "remote_url: lm://h:1\n",
    "cache_policy": "",
    "transfer_channel": P2P,
}
STORAGE = "lmcache/v1/storage_backend/"


def text(release: str, path: str) -> str:
    return (whole_release("lmcache", release).read(f"{STORAGE}{path}") or b"").decode()


def refused_in(release: str, key: str) -> set[str]:
    """The words that the release's own code takes for a key, which it raises at others of."""
    if key == "gds_backend":
        found = text(release, "gds_backend.py")
        assert "raise ValueError(f\"Unsupported gds_backend '{self.gds_backend}'\")" in found
        return set(re.findall(r'self\.gds_backend == "(\w+)"', found))
    if key.endswith("_path_sharding"):
        sharder = text(release, "path_sharder.py")
        if not sharder:
            asserted = re.findall(
                rf'assert self\.{key} == "(\w+)"', text(release, "gds_backend.py")
            )
            return set(asserted)
        (words,) = re.findall(r"_SUPPORTED_STRATEGIES = (\(.*?\))", sharder)
        found = text(release, f"{key.removesuffix('_path_sharding')}_backend.py")
        assert f"strategy=config.{key}" in found
        return set(ast.literal_eval(words))
    if key == "remote_serde":
        return set(re.findall(r'serde_type == "(\w+)"', text(release, "naive_serde/__init__.py")))
    if key == "transfer_channel":
        whole = whole_release("lmcache", release)
        folders = ("lmcache/inprocess/v1", "lmcache/v1")
        found = [whole.read(f"{one}/transfer_channel/__init__.py") for one in folders]
        code = next(one for one in found if one).decode()
        for user in ("p2p", "pd"):
            assert "channel_type=config.transfer_channel" in text(release, f"{user}_backend.py")
        (words,) = re.findall(r"assert channel_type in (\[.*?\])", code)
        return set(ast.literal_eval(words))
    return set(re.findall(r'"([A-Z]+)": \w+CachePolicy', text(release, "cache_policy/__init__.py")))


@pytest.mark.parametrize("release", [str(one) for one in lmcache_releases()])
def test_the_words_are_those_of_the_release(release: str) -> None:
    for key, choice in CHOICES.items():
        if key in schema(release).keys and Version(release) >= Version(choice.since or "0"):
            words = choice.taken(Version(release))
            assert refused_in(release, key) == set(words), key
            for word in words:
                assert "refused-at-start" not in ids(run(f"{USED[key]}{key}: {word}\n", release))
            wrong = only(run(f"{USED[key]}{key}: sth-else\n", release), rules.STOPS)
            assert wrong.fix is None
            assert wrong.key == key


@pytest.mark.parametrize(
    ("key", "written", "meant"),
    [
        ("gds_backend", "cuFile", "cufile"),
        ("gds_path_sharding", "by-gpu", "by_gpu"),
        ("local_disk_path_sharding", "BY_GPU", "by_gpu"),
        ("remote_serde", "Naive", "naive"),
        ("transfer_channel", "NIXL", "nixl"),
    ],
)
def test_a_word_in_another_spelling_is_mended(key: str, written: str, meant: str) -> None:
    found = only(run(f"{USED[key]}{key}: {written}\n"), rules.STOPS)
    assert found.fix is not None
    assert (found.fix.key, found.fix.value) == (key, meant)
    assert f"write {meant}" in found.message


def test_a_word_of_a_later_release_is_none_before() -> None:
    text_ = f"{P2P}transfer_channel: mock_memory\n"
    assert only(run(text_, "0.3.9"), rules.STOPS).message.endswith("; it takes nixl")
    assert "refused-at-start" not in ids(run(text_, "0.3.10"))
    told = only(run(f"{P2P}transfer_channel: nvlink\n"), rules.STOPS).message
    assert told.endswith("; it takes nixl or mock_memory")


def test_a_word_that_another_package_brings_is_a_warning() -> None:
    found = only(run(f"{P2P}transfer_channel: hccl\n"), rules.STOPS)
    assert found.level is Level.WARNING
    assert found.message.endswith("stops at transfer_channel: hccl; LMCache-Ascend alone takes it")


def test_capitals_make_no_policy_another() -> None:
    assert run("cache_policy: lfu\n").clean
    assert "the nearest is lru" in only(run("cache_policy: LRUU\n"), rules.STOPS).message


def test_a_word_that_nothing_takes_is_left_alone() -> None:
    for text_ in (
        "gds_backend: x\n",
        "remote_serde: x\n",
        "transfer_channel: x\n",
        f"{GDS}use_gds: false\ngds_backend: x\n",
    ):
        assert "refused-at-start" not in ids(run(text_))
    linted = run("gds_backend: x\n")
    assert value(linted, "gds_backend") == "x"
