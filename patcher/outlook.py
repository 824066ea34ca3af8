"""What a plan makes of a host's pair: its letters as it stands and after, and whether to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .codebase import Facts
from .compat import MEANINGS, Verdict, after, check_tree, compat_data, compat_text
from .fsops import Disk
from .host import View, Where, open_host
from .letters import Finding
from .outcome import ExitCode, KvpatchError, Outcome, Report
from .pairs import load
from .refusals import incomplete
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
        versions = self.seen.host.exact
        if set(versions) >= set(PACKAGES):
            pair = versions["vllm"], versions["lmcache"]
            whole = " with all patches" if self.seen.left_out else ""
            told.append(f"catalogue   {load().standing(*pair)}{whole}")
            if self.after.complete and not self.after.green:
                told.append(f"instead     {self._instead(*pair)}")
        return told

    def _instead(self, vllm: Version, lmcache: Version) -> str:
        known = load().of(vllm, lmcache)
        if known is not None and known.ok and self.seen.selection.left_out:
            return "leave out --only and --skip: with all patches this pair blends"
        return self._advice or load().advice(vllm, lmcache)

    @property
    def _advice(self) -> str | None:
        return incomplete(self.seen.host, ".py", ".so")

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
        advice = self._advice or load().advice(*(self.seen.host.exact[name] for name in PACKAGES))
        raise KvpatchError(
            "incurable",
            f"{pair} can't blend, letter {finding.letter}: {MEANINGS[finding.letter]}; "
            f"{finding.sentence} ({finding.path}:{finding.line})",
            f"{advice}; "
            "`kvpatch validate` lists all pairs that work, and `--only ID` applies a patch all the "
            "same",
        )


def outlook(seen: View) -> Outlook:
    """Read the installed sources, as they stand and as the plan would leave them.

    Takes a second or two: some two hundred files are parsed.
    """
    facts = Facts()
    # Of all patches, chosen or not: what is in place does its work until it is taken out.
    tree, members = seen.host.tree, discover().members
    before = check_tree(tree, members, facts)
    planned = after(tree, seen.plan)
    then = check_tree(planned, members, facts) if planned.files else before
    return Outlook(seen, before, then)


def findings_on(where: Where, disk: Disk) -> tuple[Finding, ...]:
    """What is said of the installed pair as its files now are."""
    host = open_host(where, disk)
    return check_tree(host.tree, discover().members).findings


def compat_report(seen: View, heading: str, apply: str) -> Report:
    """What ``kvpatch compat`` says of a host; exit 1 where the pair doesn't blend in any way.

    Args:
        seen: the host, planned on.
        heading: the first line.
        apply: the command that applies the plan.
    """
    found = outlook(seen)
    lines = [heading, "", *found.lines(cured=True)]
    if not found.before.complete:
        raise _missing(seen)
    versions = {name: str(version) for name, version in seen.host.exact.items()}
    # As `validate` has its pairs, for who reads the reports of both.
    data = {"compat": found.data, "pairs": [{**versions, **(found.data or {})}]}
    lines.append(f"blends      {_answer(found, apply)}")
    code = ExitCode.DONE if found.after.green else ExitCode.NO
    return Report("compat", "\n".join(lines), data, code)


def _missing(seen: View) -> KvpatchError:
    if "lmcache" in seen.host.environment.packages:
        return KvpatchError(
            "sources-missing",
            "the sources of vLLM or LMCache are not all there, so the letters can't be read",
            "reinstall both, so that their Python files are there again",
            ExitCode.ENVIRONMENT,
        )
    return KvpatchError(
        "no-lmcache",
        "LMCache is not installed here, so there is no pair to be read",
        "install LMCache into this environment, or name another one with --python",
        ExitCode.ENVIRONMENT,
    )


def _answer(found: Outlook, apply: str) -> str:
    if not found.after.green:
        return "no, not even with the patches this kvpatch has"
    settings = ", with the settings named above" if found.after.settings else ""
    seen = found.seen
    if found.before.green:
        pending = [p.id for p in seen.plan.patches if p.outcome is Outcome.PENDING]
        return f"yes{settings}{_untold('not in place', (*pending, *seen.left_out))}"
    return f"after {apply}{settings}{_untold('without', seen.left_out)}"


def _untold(how: str, patches: Sequence[str]) -> str:
    return f"; {how}: {', '.join(patches)}, which no letter tells of" if patches else ""
