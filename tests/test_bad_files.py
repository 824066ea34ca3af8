"""A file that is named and can't be read has the same answer in every verb."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import kvpatch
from fake_site import FakeSite, install, make_site
from kvpatch.schema import CONFIG
from releases import release_file

pytestmark = pytest.mark.releases

PAIR = ("--lmcache", "0.5.6", "--vllm", "0.32.0")
SMOKE = ("smoke", "--device", "cpu")


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    site = make_site(tmp_path, "0.32.0")
    config = bytes(release_file("lmcache", "0.5.6", CONFIG)).decode()
    install(site.path, "lmcache", "0.5.6", {"lmcache/__init__.py": "", CONFIG: config})
    return site


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (("lint", "{file}", "--lmcache", "0.5.6"), {"unreadable"}),
        (("doctor", "--config", "{file}", "--site", "{site}"), {"unreadable"}),
        (("doctor", "--model", "{file}", "--site", "{site}"), {"no-model"}),
        (("profile", "gds", *PAIR, "--model", "{file}"), {"no-model"}),
        ((*SMOKE, "--config", "{file}", "--site", "{site}"), {"unreadable"}),
        ((*SMOKE, "--model", "{file}", "--site", "{site}"), {"no-model"}),
        (("validate", "--baseline", "{file}"), {"unreadable"}),
    ],
)
def test_it_is_the_environment_told_without_pythons_words(
    site: FakeSite, tmp_path: Path, arguments: tuple[str, ...], codes: set[str]
) -> None:
    named = {"file": tmp_path / "nope", "site": site.path}
    ran = kvpatch(*(word.format(**named) for word in arguments), "--json")
    assert ran.code == 4, ran.out
    assert ran.error["code"] in codes
    assert str(tmp_path / "nope") in ran.error["message"]
    assert ran.error["hint"]
    for word in ("Errno", "Error", "Traceback"):
        assert word not in ran.error["message"]
