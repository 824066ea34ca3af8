"""What ``kvpatch validate`` reports of a matrix: text, Markdown, and what makes it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from packaging.version import Version

from .baseline import catalogue_before, green_before, regressions
from .fsops import Disk
from .junit import junit
from .listing import GDS, STARS, Listing, label, only_with_gds
from .matrix import Say, blocking
from .outcome import ExitCode, KvpatchError, Report
from .outputs import put, ready, remove
from .pairs import Pairs, Ran, build, load
from .plan import GOAL
from .series import discover
from .supply import Request
from .tree import PACKAGES
from .validate import Matrix, validate


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
        KvpatchError: as :func:`kvpatch.validate.validate`; ``bad-baseline`` and
            ``only-without-run`` (exit 2); ``not-written`` (exit 4).
    """
    if only and disk is None:
        raise KvpatchError(
            "only-without-run",
            "--only chooses what --run puts in, and --run is not given",
            "give --run too, or leave --only away: reading takes all patches",
            ExitCode.USAGE,
        )
    was = green_before(baseline)
    for path in (files.markdown, files.junit, files.html, files.catalogue, files.issue):
        ready(path)
    earlier = catalogue_before(files.catalogue)
    matrix = validate(asked, cache, say)
    # Files that show the matrix show by it what failures() makes of it, and nothing of these.
    beside: tuple[KvpatchError, ...] = tuple(regressions(matrix, was))
    chosen = bool(asked.specs["lmcache"])
    told, data = text(matrix, chosen=chosen), matrix.data
    ran: tuple[Ran, ...] = ()
    # What was read is told although it can't be run, or a file can't be written.
    lost = matrix.lost
    data["not_run"] = []
    if disk is not None:
        from . import rehearsal

        # Who names both sides means these pairs, whatever was read of them.
        wanted = rehearsal.Wanted(all(asked.specs.values()), only)
        try:
            found = rehearsal.rehearse(matrix.pairs, discover(), cache, disk, say, wanted)
            beside, ran = (*beside, *found.errors), found.ran
            data["not_run"] = list(found.notes)
            told = "\n".join([told, "", *rehearsal.text(found)])
        except KvpatchError as error:
            lost = (*lost, error)
    data["ran"] = [vars(one) for one in ran]
    errors, shown = (*failures(matrix), *beside), (*beside, *lost)
    made: list[tuple[Path | None, Callable[[], str | None]]] = [
        (files.markdown, lambda: markdown(matrix, errors, chosen=chosen)),
        (files.junit, lambda: junit(matrix, shown)),
        (files.html, lambda: _page(matrix, shown, chosen=chosen)),
        (files.catalogue, lambda: catalogue(matrix, asked, earlier, ran)),
        (files.issue, lambda: _issue(matrix, errors)),
    ]
    lost = (*lost, *_unwritten(made))
    code = ExitCode.NO if errors else lost[0].exit_code if lost else ExitCode.DONE
    if any(_not_kept(error.code) for error in errors):
        # Of what could not be kept nothing is known: that is no answer.
        code = ExitCode.ENVIRONMENT
    return Report("validate", told, data, code, (*errors, *lost))


def catalogue(
    matrix: Matrix, asked: Request, earlier: Pairs | None, ran: Sequence[Ran] = ()
) -> str:
    """The text of ``pairs.json`` for a matrix; a run over a few releases leaves the others in."""
    released = {(row.package, row.version) for row in matrix.rows if not row.given}
    # A file that was given for a release of the index is not that release.
    rows = [r for r in matrix.rows if not r.given or (r.package, r.version) not in released]
    wheels = {name: {r.version: r.key for r in rows if r.package == name} for name in PACKAGES}
    return build(
        [
            pair
            for pair in matrix.pairs
            if released.isdisjoint((name, str(pair[name])) for name in pair.get("sources", ()))
        ],
        wheels,
        discover().digest,
        datetime.now(timezone.utc).date(),
        earlier,
        ran,
        whole=not any(asked.specs.values()) and not asked.sources and not matrix.lost,
    )


def _unwritten(
    wanted: Sequence[tuple[Path | None, Callable[[], str | None]]],
) -> Iterator[KvpatchError]:
    """Write the files that are wanted; what is to be said of those that can't be."""
    for path, made in wanted:
        if path is None:
            continue
        try:
            content = made()
            if content is not None:
                put(path, content)
            else:
                # An earlier run's text must not be taken for this one's.
                remove(path)
        except KvpatchError as error:
            yield error


def _page(matrix: Matrix, errors: Sequence[KvpatchError], *, chosen: bool) -> str:
    from .heatmap import page

    told = [f"{error.code}: {error.message}" for error in errors]
    return page(matrix.data, [*told, *_red(matrix, chosen=chosen)])


def _issue(matrix: Matrix, errors: Sequence[KvpatchError]) -> str | None:
    """The text of an issue; None where nothing is new."""
    from .news import issue

    return issue(matrix, errors, load())


def text(matrix: Matrix, *, chosen: bool = False) -> str:
    """The summary in lines; ``chosen`` where only some LMCache were asked for."""
    listed = Listing(matrix.pairs).text()
    return "\n".join([*_counts(matrix), "", *listed, *_red(matrix, chosen=chosen)])


def _counts(matrix: Matrix) -> list[str]:
    """How many releases, pairs, and pairs that blend."""
    told = matrix.data["summary"]
    rows = {name: [r for r in matrix.rows if r.package == name] for name in PACKAGES}
    counts = f"{len(rows['vllm'])} of vLLM, {len(rows['lmcache'])} of LMCache"
    asked = "1 request" if told["requests"] == 1 else f"{told['requests']} requests"
    read = f"{asked}, {told['bytes'] / 1e6:.1f} MB"
    settings = f"{told['green_after_with_settings']} of them with launch settings"
    noted = told["green_after_with_notes"]
    wheels = (
        f"    of these {noted} need another build of LMCache or --no-deps, as their released "
        "wheels don't fit: see the notes"
    )
    return [
        f"releases: {counts}; pairs: {told['pairs']}; in {told['seconds']} s ({read})",
        "",
        f"blend as released            {told['green_as_released']:5}",
        f"by registration alone        {told['green_by_registration_alone']:5}",
        f"after `kvpatch apply`        {told['green_after']:5}, {settings}",
        *([wheels] if noted else []),
    ]


def _red(matrix: Matrix, *, chosen: bool) -> list[str]:
    """What does not blend with anything, can't be read, and can't be patched."""
    lines = []
    without = matrix.data["summary"]["vllm_without_a_green_pair"]
    if without:
        which = "none of the LMCache asked for" if chosen else "no LMCache"
        if any(row.error for row in matrix.rows if row.package == "lmcache"):
            which = "none of the LMCache that could be read"
        lines.append(f"vLLM that {which} blends with after apply: {', '.join(without)}")
    same = Counter((row.package, row.version) for row in matrix.rows)
    for row in matrix.rows:
        which = f"{row.package} {row.version}"
        if same[row.package, row.version] > 1:
            which += f" ({row.name})"
        if row.error is not None:
            lines.append(f"not read: {which}: {row.error.message}")
        elif not row.ok:
            refused = [f"{p['id']} {p['outcome']}: {p['reason']}" for p in row.refused]
            reason = "; ".join(refused) or "no patch registers its model"
            lines.append(f"can't be patched: {which}: {reason}")
    for message in dict.fromkeys(pair["message"] for pair in matrix.unread):
        count = sum(pair["message"] == message for pair in matrix.unread)
        lines.append(f"not checked: {_pairs(count)}: {message}")
    return lines


def failures(matrix: Matrix) -> Iterator[KvpatchError]:
    """The newest release of each package that can't be patched, or not be checked with all.

    A cache folder that can't be written is one whichever release that struck.
    """
    full = [row.error.message for row in matrix.rows if row.error and _not_kept(row.error.code)]
    full += [pair["message"] for pair in matrix.unread if _not_kept(pair["code"])]
    if full:
        hint = "make room, or set XDG_CACHE_HOME to a folder that can be written"
        yield KvpatchError("no-cache", full[0], hint, ExitCode.ENVIRONMENT)
    for name in PACKAGES:
        rows = [row for row in matrix.rows if row.package == name]
        version = max((row.version for row in rows), key=Version)
        # Two where a file of that release was given besides the one that the index has.
        newest = [row for row in rows if Version(row.version) == Version(version)]
        for row in newest:
            if row.error is not None:
                if not _not_kept(row.error.code):
                    yield row.error
            elif not row.ok:
                which = f"{name} {row.version}" + (f" ({row.name})" if len(newest) > 1 else "")
                reasons = "; ".join(f"{p['id']} is {p['outcome']}" for p in row.refused)
                yield KvpatchError(
                    "newest-unpatched",
                    f"{which} can't be patched: {reasons or 'no patch registers it'}",
                    "the series needs a change for this release",
                    ExitCode.NO,
                )
        # A file of an older release is as little of a reason as a row of one.
        mine = [
            pair
            for pair in matrix.unread
            if pair[name] == version and pair.get("distribution", name) == name
        ]
        unread = [pair for pair in mine if not _not_kept(pair["code"])]
        if unread:
            yield KvpatchError(
                unread[0]["code"],
                f"{_pairs(len(unread))} of {name} {version} can't be checked, the first "
                f"because {unread[0]['message']}",
                f"{unread[0]['hint']}; what could be read is kept",
                ExitCode.NO,
            )


def _not_kept(code: str) -> bool:
    """Whether an error is about this host's cache folder, and says nothing of a release."""
    return code == "no-cache"


def markdown(matrix: Matrix, errors: Sequence[KvpatchError], *, chosen: bool = False) -> str:
    """A job summary: the counts, what is red, and which LMCache each vLLM blends with."""
    listing = Listing(matrix.pairs)
    lines = ["# vLLM and LMCache: which pairs blend", ""]
    said = [*_counts(matrix), *_red(matrix, chosen=chosen)]
    lines += [f"- {line.strip()}" for line in said if line]
    if errors:
        lines += ["", "## Red", ""]
        lines += [f"- **{error.code}**: {_cell(error.message)}" for error in errors]
    lines += ["", "## By release of vLLM", "", "| vLLM | registration alone | after apply |"]
    lines += ["|---|---|---|"]
    for vllm in dict.fromkeys(label(pair, "vllm") for pair in reversed(matrix.pairs)):
        mine = [pair for pair in matrix.pairs if label(pair, "vllm") == vllm]
        alone = [label(p, "lmcache") for p in mine if blocking(p, "before") == {GOAL}]
        lines.append(f"| {vllm} | {_span(alone)} | {listing.green('vllm', vllm)} |")
    if matrix.data["summary"]["green_after_with_settings"]:
        lines += ["", f"\\{STARS}"]
    if any(map(only_with_gds, matrix.pairs)):
        lines += ["", GDS]
    more = [*listing.notes, *listing.sources]
    if more:
        lines += ["", "## Notes", "", *(f"- {_cell(line)}".replace("*", "\\*") for line in more)]
    return "\n".join(lines) + "\n"


def _span(versions: Sequence[str]) -> str:
    """Some versions of an ordered list, in short."""
    if len(versions) < 4:
        return ", ".join(versions) or "none"
    return f"{len(versions)}: {versions[0]} to {versions[-1]}"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def _pairs(count: int) -> str:
    return f"{count} {'pair' if count == 1 else 'pairs'}"
