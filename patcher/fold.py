"""What would become of one file: proof that it does the work, or the patches folded over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from packaging.version import Version

from .digest import sha256
from .edits import imports_at_load
from .judgements import Parsed, asked, judge, parsed
from .ledger import MARK
from .outcome import Outcome
from .patch import Faithful, Judgement, Patch, Refusal, Target
from .strangers import Stranger, besides, differences
from .tree import Package, Provenance, Source, Tree

if TYPE_CHECKING:
    from .catalogue import Catalogue
    from .series import Member


_LARGEST = 1_000_000
"""Bytes of the largest text that is judged; the largest file a patch names has 0.2 MB."""

_Fault = tuple[str, Refusal]
"""The id of the patch that can't go in, and why."""


@dataclass(frozen=True)
class Rewrite:
    """A text with patches folded over it, and whether it is the stock one without them."""

    after: bytes
    faithful: Mapping[Faithful, Judgement]


@dataclass
class Memo:
    """What was worked out for texts, by their digests and those of the patches.

    ``transformed`` has what the patches make of a text, ``rewrites`` that with what was judged.
    """

    transformed: dict[tuple[str, ...], bytes | _Fault] = field(default_factory=dict)
    rewrites: dict[tuple[str, ...], Rewrite] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How far a plan may go.

    ``thorough`` re-plans files that are ours by hash too, and judges every result anew; else a
    result that is byte for byte the one judged when the catalogue was made is not judged again.
    ``brief`` takes from the catalogue what planning a file of that hash came to, which is enough
    for a report but not for a change.
    ``memo`` keeps what was worked out, for plans over many releases that share files.
    """

    accept_foreign: bool = False
    allow_unverified: bool = False
    thorough: bool = False
    brief: bool = False
    known: Catalogue | None = None
    memo: Memo | None = None


@dataclass(frozen=True)
class TargetPlan:
    """What a plan says about one file of one patch."""

    path: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class FilePlan:
    """One file as it stands and as it would be; ``after`` is None where it was not worked out."""

    path: str
    package: str
    distribution: str
    state: str
    content: bytes
    original: bytes
    after_digest: str
    after: bytes | None = None
    basis: str = "pristine"
    patches: Mapping[str, str] = field(default_factory=dict)

    @property
    def before_digest(self) -> str:
        """sha256 of the bytes as they stand."""
        return sha256(self.content)

    @property
    def pending(self) -> bool:
        """Whether applying would change the file."""
        return self.after_digest != self.before_digest


Items = Sequence[tuple["Member", Target]]
Told = Mapping[str, TargetPlan]


def plan_file(
    tree: Tree, name: str, package: Package, path: str, items: Items, options: Options
) -> tuple[FilePlan | None, Told]:
    """Plan one file with the patches that touch it, in series order.

    Returns:
        the file, None where there is none to speak of, and each patch's verdict on it by id.
    """
    try:
        source = tree.source(name, path)
    except Refusal as refusal:
        return None, _tell(items, path, refusal.outcome, refusal.reason)
    if source is None:
        return None, _tell(items, path, Outcome.MISSING, f"{path} is not there")
    file = FilePlan(
        path=path,
        package=name,
        distribution=package.distribution,
        state=source.provenance.value,
        content=source.content,
        original=source.content,
        after_digest=sha256(source.content),
        after=source.content,
    )
    if source.provenance is Provenance.OURS and source.original is not None:
        file = replace(file, original=source.original, basis=source.basis or "pristine")
        if not options.thorough and dict(source.written) == _digests(items):
            return replace(file, patches=source.written), _tell(
                items, path, Outcome.ALREADY, "in place as kvpatch wrote it"
            )
        return _fold(file, package, items, source, options)
    if source.provenance is Provenance.PRISTINE:
        if (
            options.brief
            and options.known
            and (short := options.known.outcome(items, file.before_digest))
        ):
            after, told = short
            return replace(file, after_digest=after, after=None), told
        return _fold(file, package, items, source, options)
    return _plan_strange(tree, file, package, items, source, options)


def _plan_strange(
    tree: Tree, file: FilePlan, package: Package, items: Items, source: Source, options: Options
) -> tuple[FilePlan, Told]:
    """A file that is neither pristine nor ours: proof that it does the work, or a refusal."""
    if len(file.content) > _LARGEST:
        size = f"{len(file.content) / 1e6:.1f} MB"
        reason = f"{size} is more than any release has there, so it is not read; {source.why}"
        told = {m.id: TargetPlan(file.path, Outcome.CONFLICT, reason) for m, _ in items}
        return replace(file, state="foreign"), told
    module = parsed(file.content)
    judgements = judge(module, package.release, _patches(items))
    stranger = Stranger(file.package, package, source, options.known)
    ours = _ours(file, package, items, source, options)
    why = f"{source.why}{differences(stranger, ours)}"
    does_the_work = all(judgement.holds for judgement in judgements.values())
    more = ""
    if does_the_work and not isinstance(module, str):
        taker = next((patch.take_out for patch in _patches(items) if patch.take_out), None)
        more = besides(stranger, module, taker)
        if tree.package("lmcache") is None and imports_at_load(module, "lmcache"):
            more = "it imports LMCache, which is not installed, so vLLM can't start"
    if does_the_work and not more:
        return file, {
            patch_id: TargetPlan(file.path, Outcome.ABSORBED, _joined(judgement.reason, why))
            for patch_id, judgement in judgements.items()
        }
    if more:
        judgements = {patch_id: Judgement(False, more) for patch_id in judgements}
    unknown = source.provenance is Provenance.UNKNOWN
    accepted = options.allow_unverified if unknown else options.accept_foreign
    # An edit of what kvpatch wrote holds the patch: as an original it could never be taken back.
    if accepted and MARK not in file.content:
        basis = "unverified" if unknown else "foreign"
        return _fold(replace(file, basis=basis), package, items, source, options)
    file = replace(file, state="unknown" if unknown else "foreign")
    first, last = (why, "") if source.written else ("", why)
    return file, {
        patch_id: TargetPlan(file.path, Outcome.FOREIGN, _joined(first, judgement.reason, last))
        for patch_id, judgement in judgements.items()
    }


def _ours(
    file: FilePlan, package: Package, items: Items, source: Source, options: Options
) -> bytes | None:
    """What kvpatch would write over the journal's original; None where it has none."""
    if source.original is None:
        return None
    ours, _ = _fold(replace(file, original=source.original), package, items, source, options)
    return ours.after if ours.after is not None else source.original


def _fold(
    file: FilePlan, package: Package, items: Items, source: Source, options: Options
) -> tuple[FilePlan, Told]:
    """Fold the patches over the original, parsed once and written once."""
    base = file.original
    if not items:
        return replace(file, after=base, after_digest=sha256(base)), {}
    after = _proved(base, items, options)
    told: dict[str, TargetPlan] = {}
    if after is None:
        stock = parsed(base)
        judgements = judge(stock, package.release, _patches(items))
        whose = f"by the fork {package.fork}" if package.fork else ""
        told = {
            patch_id: TargetPlan(file.path, Outcome.ABSORBED, _joined(judgement.reason, whose))
            for patch_id, judgement in judgements.items()
            if judgement.holds
        }
        items = [(member, target) for member, target in items if member.id not in told]
        if not items:
            return replace(file, after=base, after_digest=sha256(base)), told
        rewrite = _rewrite(base, stock, package.release, items, options.memo)
        if isinstance(rewrite, tuple):
            return file, {**told, **_refuse(items, *rewrite, file.path)}
        after = rewrite.after
    file = replace(file, after=after, after_digest=sha256(after), patches=_digests(items))
    for member, _ in items:
        if after == file.content:
            outcome, reason = Outcome.ALREADY, "in place as kvpatch wrote it"
        elif source.written.get(member.id) == member.digest:
            outcome, reason = Outcome.ALREADY, "in place; other patches of the file are pending"
        else:
            outcome, reason = Outcome.PENDING, "apply would put it in"
        told[member.id] = TargetPlan(file.path, outcome, reason)
    return file, told


def _proved(base: bytes, items: Items, options: Options) -> bytes | None:
    """The rewritten text, where it is the very one that was judged when the catalogue was made."""
    if options.thorough or options.known is None:
        return None
    known = options.known.outcome(items, sha256(base))
    if known is None:
        return None
    after = _transformed(base, items, options.memo)
    return after if isinstance(after, bytes) and sha256(after) == known[0] else None


def _rewrite(
    base: bytes, stock: Parsed, release: Version, items: Items, memo: Memo | None
) -> Rewrite | _Fault:
    """Transform the text by each patch in turn, and see that the result does its work."""
    first = items[0][0].id
    if isinstance(stock, str):
        return first, Refusal(Outcome.MISSING, f"this Python can't parse the file: {stock}")
    key = _key(base, items)
    kept = None if memo is None else memo.rewrites.get(key)
    after = kept.after if kept else _transformed(base, items, memo)
    if isinstance(after, tuple):
        return after
    folded = parsed(after)
    if isinstance(folded, str):
        return first, Refusal(Outcome.CONFLICT, f"the result does not parse: {folded}")
    checks = {member.patch.faithful for member, _ in items}
    rewrite = kept or Rewrite(
        after, {check: asked(partial(check, stock, folded)) for check in checks}
    )
    if memo is not None:
        memo.rewrites[key] = rewrite
    works = judge(folded, release, _patches(items))
    for member, _ in items:
        for judgement in (works[member.id], rewrite.faithful[member.patch.faithful]):
            if not judgement.holds:
                sentence = f"{member.id} would not do its work: {judgement.reason}"
                return member.id, Refusal(Outcome.CONFLICT, sentence)
    return rewrite


def _key(base: bytes, items: Items) -> tuple[str, ...]:
    return (sha256(base), *(f"{m.digest} {t.path} {t.versions}" for m, t in items))


def _transformed(base: bytes, items: Items, memo: Memo | None) -> bytes | _Fault:
    if memo is None:
        return _transform(base, items)
    key = _key(base, items)
    if key not in memo.transformed:
        memo.transformed[key] = _transform(base, items)
    return memo.transformed[key]


def _transform(base: bytes, items: Items) -> bytes | _Fault:
    from . import rewrite, splice

    culprit = items[0][0].id
    try:
        module = stock = rewrite.parse(base)
        for member, target in items:
            culprit = member.id
            module = target.transform(module)
        after = splice.spliced(stock, module, base)
        if after is None:
            after = rewrite.generate(module)
            rewrite.require_faithful(stock, base, after)
    except Refusal as refusal:
        # What it was raised in holds the whole tree.
        return culprit, refusal.with_traceback(None)
    return after


def _refuse(items: Items, culprit: str, refusal: Refusal, path: str) -> Mapping[str, TargetPlan]:
    """The culprit's own outcome; the others of the file can't go in without it."""
    waiting = f"{culprit} of the same file was refused"
    return {
        member.id: TargetPlan(path, refusal.outcome, refusal.reason)
        if member.id == culprit
        else TargetPlan(path, Outcome.PENDING, waiting)
        for member, _ in items
    }


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _tell(items: Items, path: str, outcome: Outcome, reason: str) -> Told:
    return {member.id: TargetPlan(path, outcome, reason) for member, _ in items}


def _digests(items: Items) -> dict[str, str]:
    return {member.id: member.digest for member, _ in items}


def _patches(items: Items) -> list[Patch]:
    return [member.patch for member, _ in items]
