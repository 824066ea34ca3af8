"""What a plan makes of a host's pair: its letters as it stands and after, and whether to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .codebase import Facts
from .compat import MEANINGS, Verdict, after, check_tree, compat_data, compat_text
from .fsops import Disk
from .host import View, Where, open_host
from .letters import Finding
from .outcome import KvpatchError, Report
from .pairs import load
from .series import discover
from .tree import PACKAGES


@dataclass(frozen=True)
class Outlook:
    """The verdicts on the pair of a view, before and after its plan."""

    seen: View
    before: Verdict
    after: Verdict

    @property
    def data(self) -> Mapping[str, Any] | None:
        """``data.compat``; None where the sources are not all there."""
        return compat_data(self.before, self.seen.plan, self.after)

    def lines(self, *, cured: bool = False) -> list[str]:
        """The letters as text, how they were come by, and what to take where they stay.

        Args:
            cured: explain the letters too that the plan takes away.
        """
        told = compat_text(self.data, cured=cured)
        versions = self.seen.host.versions
        if set(versions) >= set(PACKAGES):
            pair = versions["vllm"], versions["lmcache"]
            told.append(f"catalogue   {load().standing(*pair)}")
            if self.after.complete and not self.after.green:
                told.append(f"instead     {self._instead(*pair)}")
        return told

    def _instead(self, vllm: Version, lmcache: Version) -> str:
        known = load().of(vllm, lmcache)
        if known is not None and known.ok and self.seen.selection.left_out:
            return "leave out --only and --skip: with all patches this pair blends"
        return load().advice(vllm, lmcache)

    def refuse(self) -> None:
        """See that the patches are worth applying.

        Raises:
            KvpatchError: ``incurable``, naming the letter, where no patch makes the pair blend.
        """
        finding = self.after.incurable if self.after.complete else None
        if finding is None:
            return
        packages = self.seen.host.environment.packages
        pair = f"vLLM {packages['vllm'].version} and LMCache {packages['lmcache'].version}"
        raise KvpatchError(
            "incurable",
            f"{pair} can't blend, letter {finding.letter}: {MEANINGS[finding.letter]}; "
            f"{finding.sentence} ({finding.path}:{finding.line})",
            f"{load().advice(*(self.seen.host.versions[name] for name in PACKAGES))}; "
            "`kvpatch validate` lists all pairs that work, and `--only ID` applies a patch all the "
            "same",
        )


def outlook(seen: View) -> Outlook:
    """Read the installed sources, as they stand and as the plan would leave them.

    Takes a second or two: some two hundred files are parsed.
    """
    facts = Facts()
    tree, members = seen.host.tree, seen.selection.series.members
    before = check_tree(tree, members, facts)
    planned = after(tree, seen.plan)
    then = check_tree(planned, members, facts) if planned.files else before
    return Outlook(seen, before, then)


def findings_on(where: Where, disk: Disk) -> tuple[Finding, ...]:
    """What is said of the installed pair as its files now are."""
    host = open_host(where, disk)
    return check_tree(host.tree, discover().members).findings


def compat_report(seen: View, heading: str) -> Report:
    """What ``kvpatch compat`` says of a host."""
    found = outlook(seen)
    lines = [heading, "", *found.lines(cured=True)]
    if found.before.complete:
        lines.append(f"blends      {_answer(found)}")
    return Report("compat", "\n".join(lines), {"compat": found.data})


def _answer(found: Outlook) -> str:
    if not found.after.green:
        return "no, not even with the patches this kvpatch has"
    settings = ", with the settings named above" if found.after.settings else ""
    already = found.before.green
    return f"yes{settings}" if already else f"after `kvpatch apply`{settings}"
