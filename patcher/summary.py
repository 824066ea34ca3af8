"""What ``kvpatch validate`` reports of a matrix: text, Markdown, JUnit, and what makes it fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.version import Version

from .fsops import Disk
from .matrix import Row, Say, blocking
from .outcome import ExitCode, KvpatchError, Outcome, Report
from .pairs import Pairs, Ran, build, load, read
from .plan import GOAL
from .series import discover
from .tree import PACKAGES
from .validate import Matrix, Request, validate


@dataclass(frozen=True)
class Files:
    """The files that a validate run writes beside its report."""

    markdown: Path | None = None
    junit: Path | None = None
    html: Path | None = None
    catalogue: Path | None = None
    issue: Path | None = None


def report(
    asked: Request,
    baseline: Path | None,
    files: Files,
    cache: Path,
    say: Say,
    disk: Disk | None = None,
    only: tuple[str, ...] = (),
) -> Report:
    """What ``kvpatch validate`` says: counts, then what is red, then the outcome.

    With a ``disk``, the pairs are also run, with the patches ``only`` where these are named.

    Raises:
        KvpatchError: as :func:`kvpatch.validate.validate`; ``bad-baseline`` (exit 2);
            ``not-written`` (exit 4).
    """
    was = green_before(baseline)
    for path in (files.markdown, files.junit, files.html, files.catalogue, files.issue):
        # Said before the minutes that the rest takes.
        if path is not None and not path.absolute().parent.is_dir():
            raise _not_written(path, "its folder is not there")
    earlier = _earlier(files.catalogue)
    matrix = validate(asked, cache, say)
    errors = (*failures(matrix), *regressions(matrix, was))
    told, data = text(matrix), matrix.data
    ran: tuple[Ran, ...] = ()
    data["not_run"] = []
    if disk is not None:
        from . import rehearsal

        # Who names both sides means these pairs, whatever was read of them.
        wanted = rehearsal.Wanted(all(asked.specs.values()), only)
        found = rehearsal.rehearse(matrix.pairs, discover(), cache, disk, say, wanted)
        errors, ran = (*errors, *found.errors), found.ran
        data["not_run"] = list(found.notes)
        told = "\n".join([told, "", *rehearsal.text(found)])
    data["ran"] = [vars(one) for one in ran]
    _write(files, matrix, errors)
    if files.catalogue is not None:
        _put(files.catalogue, catalogue(matrix, asked, earlier, ran))
    if files.issue is not None:
        _tell(files.issue, matrix, errors)
    code = ExitCode.NO if errors else ExitCode.DONE
    return Report("validate", told, data, code, errors)


def catalogue(
    matrix: Matrix, asked: Request, earlier: Pairs | None, ran: Sequence[Ran] = ()
) -> str:
    """The text of ``pairs.json`` for a matrix; a run over a few releases leaves the others in."""
    wheels = {
        name: {r.version: r.key for r in matrix.rows if r.package == name} for name in PACKAGES
    }
    return build(
        matrix.pairs,
        wheels,
        discover().digest,
        datetime.now(timezone.utc).date(),
        earlier,
        ran,
        whole=not any(asked.specs.values()) and not asked.sources,
    )


def _earlier(path: Path | None) -> Pairs | None:
    """The catalogue that is to be written anew, where it is there.

    Raises:
        KvpatchError: ``unreadable`` (exit 4), ``bad-catalogue`` (exit 2).
    """
    if path is None or not path.exists():
        return None
    content = _content(path, "name another file, or see that this user may read it")
    try:
        return read(content.decode("utf-8"))
    except (ValueError, KeyError, TypeError):
        raise KvpatchError(
            "bad-catalogue",
            f"{path} is there and is no catalogue of this kvpatch",
            "name another file, or remove that one",
            ExitCode.USAGE,
        ) from None


def _content(path: Path, hint: str) -> bytes:
    """What is in a file that the user named.

    Raises:
        KvpatchError: ``unreadable``; exit 4.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise KvpatchError(
            "unreadable",
            f"{path} can't be read: {error.strerror}",
            hint,
            ExitCode.ENVIRONMENT,
        ) from None


def _tell(path: Path, matrix: Matrix, errors: Sequence[KvpatchError]) -> None:
    from .news import issue

    told = issue(matrix, errors, load())
    if told is None:
        # An earlier run's text must not be taken for this one's.
        path.unlink(missing_ok=True)
    else:
        _put(path, told)


def _write(files: Files, matrix: Matrix, errors: Sequence[KvpatchError]) -> None:
    from .heatmap import page

    wanted: list[tuple[Path | None, Callable[[], str]]] = [
        (files.markdown, lambda: markdown(matrix, errors)),
        (files.junit, lambda: junit(matrix)),
        (files.html, lambda: page(matrix.data)),
    ]
    for path, made in wanted:
        if path is not None:
            _put(path, made())


def _put(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from error


def _not_written(path: Path, why: str) -> KvpatchError:
    return KvpatchError(
        "not-written",
        f"{path} can't be written: {why}",
        "name a file in a folder that is there and may be written",
        ExitCode.ENVIRONMENT,
    )


_FEW_PAIRS = 20


def _pair_lines(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each pair with its letters, as released and after apply."""
    lines = [f"{'vLLM':14}{'LMCache':14}{'as released':18}{'after apply':18}"]
    for pair in pairs:
        before, later = (" ".join(pair[when]) or "none" for when in ("before", "after"))
        if pair["ok"]:
            answer = "blends with launch settings" if pair["settings"] else "blends"
        else:
            answer = "does not blend"
        lines.append(f"{pair['vllm']:14}{pair['lmcache']:14}{before:18}{later:18}{answer}")
    return lines


def text(matrix: Matrix) -> str:
    """The summary in lines."""
    told = matrix.data["summary"]
    rows = {name: [r for r in matrix.rows if r.package == name] for name in PACKAGES}
    counts = f"{len(rows['vllm'])} of vLLM, {len(rows['lmcache'])} of LMCache"
    read = f"{told['requests']} requests, {told['bytes'] / 1e6:.1f} MB"
    settings = f"{told['green_after_with_settings']} of them with launch settings"
    lines = [
        f"releases: {counts}; pairs: {told['pairs']}; in {told['seconds']} s ({read})",
        "",
        f"blend as released            {told['green_as_released']:5}",
        f"by registration alone        {told['green_by_registration_alone']:5}",
        f"after `kvpatch apply`        {told['green_after']:5}, {settings}",
    ]
    if len(matrix.pairs) <= _FEW_PAIRS:
        lines += ["", *_pair_lines(matrix.pairs)]
    without = told["vllm_without_a_green_pair"]
    if without:
        lines.append(f"vLLM that no LMCache blends with after apply: {', '.join(without)}")
    for row in matrix.rows:
        if row.error is not None:
            lines.append(f"not read: {row.package} {row.version}: {row.error.message}")
        elif not row.ok:
            refused = [f"{p['id']} {p['outcome']}: {p['reason']}" for p in _refused(row)]
            reason = "; ".join(refused) or "no patch registers its model"
            lines.append(f"can't be patched: {row.package} {row.version}: {reason}")
    return "\n".join(lines)


def failures(matrix: Matrix) -> Iterator[KvpatchError]:
    """The newest release of each package that can't be patched."""
    for name in PACKAGES:
        rows = [row for row in matrix.rows if row.package == name]
        newest = max(rows, key=lambda row: Version(row.version))
        if newest.error is not None:
            yield newest.error
        elif not newest.ok:
            reasons = "; ".join(f"{p['id']} is {p['outcome']}" for p in _refused(newest))
            yield KvpatchError(
                "newest-unpatched",
                f"{name} {newest.version} can't be patched: {reasons or 'no patch registers it'}",
                "the series needs a change for this release",
                ExitCode.NO,
            )


def green_before(baseline: Path | None) -> frozenset[tuple[str, str]]:
    """The pairs that an earlier report or catalogue had green.

    Raises:
        KvpatchError: ``unreadable`` (exit 4), ``bad-baseline`` (exit 2).
    """
    if baseline is None:
        return frozenset()
    content = _content(baseline, "write one with `kvpatch validate --json > FILE`")
    try:
        data = json.loads(content)
        if "rows" in data:
            known = read(content.decode("utf-8")).known
            return frozenset(pair for pair, told in known.items() if told.ok)
        pairs = data.get("data", data)["pairs"]
        return frozenset((str(p["vllm"]), str(p["lmcache"])) for p in pairs if p["ok"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise KvpatchError(
            "bad-baseline",
            f"{baseline} is no report of `kvpatch validate --json`, and no catalogue",
            "write one with `kvpatch validate --json > FILE`",
            ExitCode.USAGE,
        ) from None


def regressions(matrix: Matrix, was: frozenset[tuple[str, str]]) -> Iterator[KvpatchError]:
    """The pairs that were green, and now are red or can't be read."""
    now = {(str(pair["vllm"]), str(pair["lmcache"])): pair for pair in matrix.pairs}
    versions = {(row.package, row.version) for row in matrix.rows}
    for vllm, lmcache in sorted(was):
        pair = now.get((vllm, lmcache))
        asked = {("vllm", vllm), ("lmcache", lmcache)} <= versions
        if (pair is not None and pair["ok"]) or (pair is None and not asked):
            continue
        state = " ".join(pair["after"]) if pair else "not to be read"
        yield KvpatchError(
            "regression",
            f"vLLM {vllm} with LMCache {lmcache} was green and is {state}",
            "see its findings in `kvpatch validate --json`",
            ExitCode.NO,
        )


def markdown(matrix: Matrix, errors: Sequence[KvpatchError]) -> str:
    """A job summary: the counts, what is red, and which LMCache each vLLM blends with."""
    told = matrix.data["summary"]
    lines = ["# vLLM and LMCache: which pairs blend", ""]
    lines += [f"- {line}" for line in text(matrix).splitlines() if line]
    if errors:
        lines += ["", "## Red", ""]
        lines += [f"- **{error.code}**: {_cell(error.message)}" for error in errors]
    lines += ["", "## By release of vLLM", "", "| vLLM | registration alone | after apply |"]
    lines += ["|---|---|---|"]
    for vllm in dict.fromkeys(str(pair["vllm"]) for pair in reversed(matrix.pairs)):
        mine = [pair for pair in matrix.pairs if pair["vllm"] == vllm]
        alone = [str(p["lmcache"]) for p in mine if blocking(p, "before") == {GOAL}]
        green = [_with_settings(pair) for pair in mine if pair["ok"]]
        lines.append(f"| {vllm} | {_span(alone)} | {_span(green)} |")
    if told["green_after_with_settings"]:
        lines += ["", "\\* needs launch settings, letter V"]
    return "\n".join(lines) + "\n"


def junit(matrix: Matrix) -> str:
    """A JUnit file: a test case for each release, and for each newest pair."""
    from xml.etree.ElementTree import Element, SubElement, tostring

    suites = Element("testsuites", name="kvpatch validate")
    patched = SubElement(suites, "testsuite", name="releases")
    for row in matrix.rows:
        case = SubElement(patched, "testcase", classname=row.package, name=row.version)
        if row.error is not None:
            SubElement(case, "error", message=row.error.message)
        elif not row.ok:
            reason = "; ".join(f"{p['id']} {p['outcome']}: {p['reason']}" for p in _refused(row))
            SubElement(case, "failure", message=reason or "no patch registers its model")
    blends = SubElement(suites, "testsuite", name="vLLM with some LMCache")
    for vllm in dict.fromkeys(str(pair["vllm"]) for pair in matrix.pairs):
        mine = [pair for pair in matrix.pairs if pair["vllm"] == vllm]
        case = SubElement(blends, "testcase", classname="vllm", name=vllm)
        if not any(pair["ok"] for pair in mine):
            last = mine[-1]
            left = " ".join(last["after"])
            message = f"no LMCache blends with it; with {last['lmcache']}: {left}"
            SubElement(case, "failure", message=message)
    for suite in suites:
        cases = list(suite)
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
        suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _with_settings(pair: Mapping[str, Any]) -> str:
    return f"{pair['lmcache']}*" if pair["settings"] else str(pair["lmcache"])


def _span(versions: Sequence[str]) -> str:
    """Some versions of an ordered list, in short."""
    if len(versions) < 4:
        return ", ".join(versions) or "none"
    return f"{len(versions)}: {versions[0]} to {versions[-1]}"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def _refused(row: Row) -> list[Mapping[str, Any]]:
    return [patch for patch in row.patches if Outcome(patch["outcome"]).refused]
