from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch, on
from fake_site import FakeSite, make_site
from kvpatch import smoke
from kvpatch.outcome import ExitCode, KvpatchError, Report


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def _smokes(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    def smoked(*_: Any) -> Report:
        if isinstance(outcome, BaseException):
            raise outcome
        return Report("smoke", "the table", {"checks": []}, outcome)

    monkeypatch.setattr(smoke, "smoke", smoked)
    monkeypatch.setattr(smoke, "runnable", lambda *_: None)


def test_what_is_proved_stays_in_place(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    _smokes(monkeypatch, ExitCode.DONE)
    ran = on(site, "apply", "--smoke")
    assert ran.code == 0
    assert ran.data["smoke"] == {"checks": []}
    assert on(site, "verify").code == 0


def test_what_fails_is_taken_back_byte_for_byte(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.worker.read_bytes()
    _smokes(monkeypatch, ExitCode.NO)
    ran = on(site, "apply", "--smoke")
    assert (ran.code, ran.data["reverted"]) == (1, True)
    assert site.worker.read_bytes() == before
    assert ran.envelope["errors"][-1]["code"] == "not-proved"


def test_what_can_not_be_run_is_taken_back_and_is_exit_4(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.worker.read_bytes()
    _smokes(monkeypatch, KvpatchError("no-torch", "no torch", "install it", ExitCode.ENVIRONMENT))
    ran = on(site, "apply", "--smoke")
    assert (ran.code, ran.error["code"], ran.data["reverted"]) == (4, "no-torch", True)
    assert site.worker.read_bytes() == before


def test_an_interruption_takes_it_back_too(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    before = site.worker.read_bytes()
    _smokes(monkeypatch, KeyboardInterrupt())
    assert on(site, "apply", "--smoke").code == 4
    assert site.worker.read_bytes() == before


def test_what_an_earlier_run_put_in_stays(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on(site, "apply").code == 0
    after = site.worker.read_bytes()
    _smokes(monkeypatch, ExitCode.NO)
    ran = on(site, "apply", "--smoke")
    assert (ran.code, ran.data["reverted"]) == (1, False)
    assert site.worker.read_bytes() == after
    assert "earlier run" in ran.envelope["errors"][-1]["message"]


def test_a_refused_apply_smokes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _smokes(monkeypatch, AssertionError("it ran"))
    assert on(make_site(tmp_path, "0.8.4"), "apply", "--smoke").code == 3


def test_where_no_smoke_can_be_run_nothing_is_written(site: FakeSite) -> None:
    before, journal = site.worker.read_bytes(), set(site.path.parents[2].rglob("*"))
    ran = on(site, "apply", "--smoke")
    assert (ran.code, ran.error["code"]) == (2, "no-interpreter")
    assert site.worker.read_bytes() == before
    assert set(site.path.parents[2].rglob("*")) == journal


def test_a_dry_run_can_not_be_smoked(site: FakeSite) -> None:
    ran = kvpatch("apply", "--site", site.path, "--smoke", "--dry-run", "--json")
    assert (ran.code, ran.error["code"]) == (2, "usage")
