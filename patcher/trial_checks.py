"""What the trial asks of each run: pure judgements over what engines, probes and kvpatch left."""

from __future__ import annotations

import csv
import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .trial_engine import EngineRun

NOT_FOUND = "vllm model for vllm-instance not found"
MODEL = "LlamaForCausalLM"
PROBE = "LMCacheConnectorProbe"
OTHER = "OtherProbe"
MULTI = "MultiConnector"


@dataclass(frozen=True)
class Check:
    """One thing that was asked: a sentence, whether it held, and what was seen if it did not."""

    sentence: str
    held: bool
    seen: str = ""


def dies_unregistered(run: EngineRun) -> list[Check]:
    """As released: the engine can't start, because nobody registered the model."""
    error = run.facts.get(PROBE, {}).get("error")
    return [
        Check("the engine dies at start", run.ended.code not in (0, None), _ending(run)),
        Check(
            f"its worker's connector was told: {NOT_FOUND}",
            NOT_FOUND in str(error) and NOT_FOUND in run.ended.output,
            f"the connector was told {error!r}",
        ),
    ]


def generates(run: EngineRun) -> list[Check]:
    """The engine runs in vLLM's multiprocess mode and generates."""
    result = run.result or {}
    tokens = result.get("tokens") or []
    pids = {worker["pid"] for worker in result.get("workers", ())}
    return [
        Check(
            f"the engine generates tokens with {run.connector}: {sum(tokens)} for "
            f"{len(tokens)} prompts",
            bool(tokens) and all(count > 0 for count in tokens),
            _ending(run),
        ),
        Check(
            "its worker is another process than its caller",
            bool(pids) and result.get("pid") not in pids,
            f"caller {result.get('pid')}, workers {sorted(pids)}",
        ),
    ]


def finds_model(run: EngineRun) -> list[Check]:
    """The probe, alone or inside a MultiConnector, found the bare model of its own worker."""
    workers = (run.result or {}).get("workers") or [{}]
    held = run.facts.get(PROBE, {}).get("model")
    kinds = [worker.get("registered") for worker in workers]
    same = [
        worker.get("registered_is_runners") and worker.get("probes_saw_runners") == [True]
        for worker in workers
    ]
    return [
        Check(
            f"the connector found the model registered when it was built: a bare {MODEL}",
            held == MODEL and all(kind == [MODEL] for kind in kinds),
            f"the connector found {held}, the tracker holds {kinds}",
        ),
        Check(
            "what it found is the very object the worker's model runner runs",
            all(same) and all(worker.get("connector") == run.connector for worker in workers),
            f"{workers}",
        ),
    ]


def finds_nothing(run: EngineRun) -> list[Check]:
    """A connector that isn't LMCache's: nothing registered, LMCache not even imported."""
    fact = run.facts.get(OTHER, {})
    workers = (run.result or {}).get("workers") or [{}]
    untouched = [
        worker.get("registered") == [] and worker.get("lmcache_imported") is False
        for worker in workers
    ]
    return [
        Check(
            "for a connector of another name nothing is registered and LMCache isn't imported",
            fact.get("registered") == [] and fact.get("lmcache") is False and all(untouched),
            f"the connector saw {dict(fact)}, the worker holds {workers}",
        )
    ]


def answered(command: str, envelope: Mapping[str, Any], exit_code: int | None) -> list[Check]:
    """A verb of kvpatch ended well, and says in its envelope what its exit status says."""
    errors = "; ".join(str(error.get("message")) for error in envelope.get("errors", ()))
    return [
        Check(
            f"kvpatch {command} exits 0",
            exit_code == 0 and envelope.get("exit_code") == 0 and envelope.get("status") == "ok",
            f"exit {exit_code}: {errors or envelope.get('status', 'no envelope')}",
        )
    ]


def reads_profile(differing: Sequence[str]) -> list[Check]:
    """LMCache's own configuration code reads a profile as it is meant, without a warning."""
    sentence = "LMCache's own code reads every key of the profile as meant, without a warning"
    return [Check(sentence, not differing, "; ".join(differing))]


def located(envelope: Mapping[str, Any], vllm: str, lmcache: str) -> list[Check]:
    """Kvpatch's own idea of what is installed."""
    packages = envelope.get("data", {}).get("environment", {}).get("packages", {})
    versions = [packages.get(name, {}).get("version") for name in ("vllm", "lmcache")]
    return [
        Check(
            f"kvpatch finds vLLM {vllm} and LMCache {lmcache}",
            versions == [vllm, lmcache],
            f"it finds {versions}",
        )
    ]


def blends(envelope: Mapping[str, Any], exit_code: int | None) -> list[Check]:
    """What ``kvpatch smoke`` judged, a check each; what it did not check is left out."""
    found = [
        Check(f"{one['name']}: {one['seen'] or one['value']}", one["ok"], str(one["means"]))
        for one in envelope.get("data", {}).get("checks", ())
        if one["ok"] is not None
    ]
    return [*found, *answered("smoke", envelope, exit_code)]


def patched(envelope: Mapping[str, Any]) -> list[Check]:
    """Status after apply: the registration is in place and can be taken back."""
    data = envelope.get("data", {})
    outcomes = {patch["id"]: patch["outcome"] for patch in data.get("patches", ())}
    return [
        Check(
            "status: KV001 is in place and can be taken back",
            outcomes.get("KV001") in ("applied", "already") and data.get("revertible") is True,
            f"outcomes {outcomes}, revertible {data.get('revertible')}",
        )
    ]


def like_record(found: Sequence[str], count: int) -> list[Check]:
    """Nothing differs from RECORD."""
    return [
        Check(
            f"all {count} files of vLLM and LMCache are as their RECORDs say",
            not found and count > 0,
            ", ".join(found[:5]),
        )
    ]


def only_planned(found: Sequence[str], envelope: Mapping[str, Any]) -> list[Check]:
    """What differs from RECORD is what apply says it changed, and nothing else."""
    named = sorted(file["path"] for file in envelope.get("data", {}).get("files", ()))
    return [
        Check(
            f"it changed {', '.join(found) or 'nothing'} and no other file",
            bool(found) and list(found) == named,
            f"apply names {named}",
        )
    ]


def compare_with_record(site: Path, dist_infos: Sequence[Path]) -> tuple[list[str], int]:
    """The files that differ from RECORD, or are in none of them; and how many have a hash there.

    Reads RECORD by itself, so that it judges kvpatch and doesn't repeat it. Bytecode apart.
    """
    differing: set[str] = set()
    listed: set[str] = set()
    count = 0
    for dist_info in dist_infos:
        with (dist_info / "RECORD").open(newline="", encoding="utf-8") as lines:
            for name, stated, *_ in csv.reader(lines):
                listed.add(name)
                if stated:
                    count += 1
                    if stated != _hash(site / name):
                        differing.add(name)
    for package in sorted({name.split("/")[0] for name in listed} & {"vllm", "lmcache"}):
        differing |= set(_files(site, site / package)) - listed
    return sorted(differing), count


def _hash(path: Path) -> str:
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return "missing"
    return "sha256=" + urlsafe_b64encode(digest).decode().rstrip("=")


def _files(site: Path, folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if not path.is_dir() and path.suffix != ".pyc":
            yield path.relative_to(site).as_posix()


def _ending(run: EngineRun) -> str:
    if run.ended.code is None:
        return f"it was still going after {run.ended.seconds:.0f} s"
    return f"it ended with status {run.ended.code}"
