"""Whether a pair of vLLM and LMCache can blend, read from their source, as letters with places."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from .codebase import Codebase, Facts
from .contract import connector_class
from .letters import (
    Finding,
    Scope,
    When,
    registers_itself,
    request_findings,
    silent_findings,
    start_findings,
)
from .needs import Pair
from .syntax import syntax_tree
from .tree import PACKAGES, OverlaidTree, ReadableTree
from .walk import walk

if TYPE_CHECKING:
    from .patch import Patch
    from .plan import Plan
    from .series import Member

WORKER = "vllm/v1/worker/gpu_worker.py"
MEANINGS: Mapping[str, str] = {
    "X": "LMCache's connector can't be imported with this vLLM",
    "C": "vLLM and LMCache's connector don't agree on how they call each other",
    "H": "nothing registers the model with LMCache",
    "A": "LMCache's blender can't import vLLM's attention classes",
    "R": "LMCache's blender can't build its rotary embedding",
    "K": "LMCache's layerwise transfer does not know the shape of the KV cache",
    "E": "LMCache's blender asks the model for embeddings by a name it doesn't have",
    "S": "KV is corrupted without an error",
    "V": "it takes launch settings to be right",
}


@dataclass(frozen=True)
class Side:
    """One package of a pair: its code, its release, and the patches that are made for it."""

    code: Codebase
    release: Version
    patches: tuple[Patch, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """All that keeps a pair from blending, the first failure first.

    ``complete`` is false where the sources lack what every release has: nothing can be said then.
    """

    findings: tuple[Finding, ...]
    complete: bool = True

    @property
    def letters(self) -> tuple[str, ...]:
        """Every letter that applies, the first failure first."""
        return tuple(dict.fromkeys(finding.letter for finding in self.findings))

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that hold for everybody who blends, whatever the settings."""
        return tuple(f for f in self.findings if f.scope is Scope.ALWAYS)

    @property
    def incurable(self) -> Finding | None:
        """What no patch and no setting cures: a first failure X or C, or S for everybody."""
        for finding in self.findings:
            if finding.letter == "S" and finding.scope is Scope.PLAIN:
                return finding
        return next((f for f in self.findings if f.letter in ("X", "C")), None)

    @property
    def green(self) -> bool:
        """Whether the pair blends, if with settings, and nothing is corrupted on the way."""
        return self.complete and not self.blocking and self.incurable is None

    @property
    def settings(self) -> bool:
        """Whether it does so with certain launch settings only."""
        return any(finding.scope is Scope.SETTINGS for finding in self.findings)


def check(vllm: Side, lmcache: Side) -> Verdict:
    """Read off the source of both packages what keeps the pair from blending."""
    if vllm.code.module(connector_class()[0]) is None:
        return Verdict((), complete=False)
    ordered = _ordered(vllm, lmcache)
    cured = {
        letter
        for letter in ("K",)
        if any(f.letter == letter for f in ordered) and _cured(letter, vllm, lmcache)
    }
    return Verdict(tuple(f for f in ordered if f.letter not in cured))


def check_tree(
    tree: ReadableTree, members: Sequence[Member], facts: Facts | None = None
) -> Verdict:
    """The verdict on the pair that a tree holds; not complete where one of the two is missing."""
    shared = facts or Facts()
    sides = {name: side(tree, name, members, shared) for name in PACKAGES}
    vllm, lmcache = sides["vllm"], sides["lmcache"]
    if vllm is None or lmcache is None:
        return Verdict((), complete=False)
    return check(vllm, lmcache)


def side(tree: ReadableTree, name: str, members: Sequence[Member], facts: Facts) -> Side | None:
    """One package of a tree as a side of the pair; None where it is not there."""
    package = tree.package(name)
    if package is None:
        return None

    code = Codebase(
        name,
        lambda path: tree.content(name, path),
        facts,
        lambda module: tree.opaque(name, module),
    )
    patches = tuple(m.patch for m in members if m.patch.distribution == name)
    return Side(code, package.release, patches)


def after(tree: ReadableTree, planned: Plan) -> OverlaidTree:
    """The tree as applying a plan would leave it."""
    files = {file.path: file.after for file in planned.changes if file.after is not None}
    return OverlaidTree(tree, files)


def finding_data(finding: Finding, cures: Sequence[str] = ()) -> dict[str, Any]:
    """A finding as ``findings`` lists it; ``cures`` are the patches that take it away."""
    return {
        "letter": finding.letter,
        "when": finding.when.value,
        "path": finding.path,
        "line": finding.line,
        "sentence": finding.sentence,
        "scope": finding.scope.value,
        "cures": list(cures),
    }


def same(finding: Finding) -> tuple[str, str, str]:
    """What makes two findings one: a patch above it moves its line, no more."""
    return finding.letter, finding.path, finding.sentence


def curing(letter: str, planned: Plan) -> list[str]:
    """The patches of a plan that are there for a letter, where they apply to the pair."""
    return [p.id for p in planned.patches if letter in p.cures and not p.outcome.elsewhere]


def compat_data(before: Verdict, planned: Plan, then: Verdict) -> dict[str, Any] | None:
    """``data.compat``: the letters before and after the plan, and what each stands on."""
    if not before.complete:
        return None
    later = {same(finding) for finding in then.findings}
    every: dict[tuple[str, str, str], Finding] = {}
    for finding in (*before.findings, *then.findings):
        every.setdefault(same(finding), finding)
    return {
        "before": list(before.letters),
        "after": list(then.letters),
        "ok": then.green,
        "settings": then.settings,
        "findings": [
            finding_data(f, () if key in later else curing(f.letter, planned))
            for key, f in every.items()
        ],
    }


def compat_text(data: Mapping[str, Any] | None, *, cured: bool = False) -> list[str]:
    """The letters in a few lines: as it is, after apply, and what stays.

    Args:
        data: as :func:`compat_data` gives it.
        cured: explain the letters too that the patches take away.
    """
    if data is None:
        return ["letters     can't be read: the sources of vLLM or LMCache are not all there"]
    before, later = data["before"], data["after"]
    now, then = (" ".join(letters) or "none" for letters in (before, later))
    lines = [f"letters     {now} as it stands, {then} with the patches"]
    for letter in dict.fromkeys((*before, *later)) if cured else later:
        findings = [f for f in data["findings"] if f["letter"] == letter]
        finding = next((f for f in findings if not f["cures"]), findings[0])
        gds = ", only with GDS" if finding["scope"] == Scope.GDS.value else ""
        told = (
            f"{letter}: {MEANINGS[letter]} ({finding['when']}{gds}): {finding['sentence']}; "
            f"{finding['path']}:{finding['line']}"
        )
        if letter not in later and finding["cures"]:
            told += f"; cured by {' and '.join(finding['cures'])}"
        lines += textwrap.wrap(
            told, 100, initial_indent=" " * 12, subsequent_indent=" " * 15, break_long_words=False
        )
    return lines


def _ordered(vllm: Side, lmcache: Side) -> list[Finding]:
    pair = Pair(lmcache.code, vllm.code)
    start = list(start_findings(pair))
    early = [finding for finding in start if finding.when is When.START]
    built = [finding for finding in start if finding.when is not When.START]
    return [
        *early,
        *registration_findings(vllm, lmcache),
        *built,
        *request_findings(pair),
        *silent_findings(vllm.code, lmcache.code),
    ]


def registration_findings(vllm: Side, lmcache: Side) -> Iterator[Finding]:
    """H: whether the bare model is registered before the connector asks for it."""
    from .registration import registers_bare_model

    def judged() -> tuple[Finding, ...]:
        content = vllm.code.read(WORKER)
        if content is None:
            return (Finding("H", When.START, WORKER, 1, "this vLLM has no V1 worker"),)
        try:
            module = vllm.code.facts.parsed(content).tree
        except SyntaxError as error:
            return (Finding("H", When.START, WORKER, error.lineno or 1, "it is not Python"),)
        judgement = registers_bare_model(module, vllm.release)
        line = _connector_line(module)
        return (
            () if judgement.holds else (Finding("H", When.START, WORKER, line, judgement.reason),)
        )

    if not lmcache.code.once("registers itself", lambda: registers_itself(lmcache.code)):
        yield from vllm.code.once(("H", str(vllm.release)), judged)


def _connector_line(module: ast.Module) -> int:
    lines = [
        node.lineno
        for node in walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "ensure_kv_transfer_initialized"
    ]
    return min(lines, default=1)


def _cured(letter: str, vllm: Side, lmcache: Side) -> bool:
    """Whether the patches that cure a letter are in place, whoever put them there."""
    cures = [
        (side, patch)
        for side in (vllm, lmcache)
        for patch in side.patches
        if letter in patch.cures and patch.in_range(side.release)
    ]
    return bool(cures) and all(
        side.code.once(("holds", patch.id, str(side.release)), partial(_holds, side, patch))
        for side, patch in cures
    )


def _holds(side: Side, patch: Patch) -> bool:
    from packaging.specifiers import SpecifierSet

    texts = [
        side.code.read(target.path)
        for target in patch.targets
        if SpecifierSet(target.versions).contains(side.release, prereleases=True)
    ]
    there = [text for text in texts if text is not None]
    try:
        modules = [syntax_tree(text) for text in there]
    except SyntaxError:
        # What does not parse does no work.
        return False
    return bool(modules) and all(
        patch.post_condition(module, side.release).holds for module in modules
    )
