"""Names of all options of ``vllm serve``, by release, and words of a command that are none.

The names are in ``vllm_options.json``, which :func:`build` makes from the sources of every release.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from packaging.version import Version

from .serve_config import SWITCHES
from .vllm_options import full_name

FILES = (
    "vllm/engine/arg_utils.py",
    "vllm/entrypoints/launchers/cli_args.py",
    "vllm/entrypoints/openai/cli_args.py",
    "vllm/entrypoints/common/cli_args.py",
    "vllm/entrypoints/cli/serve.py",
    "vllm/entrypoints/utils.py",
    "vllm/entrypoints/serve/utils/api_utils.py",
)
"""Where the options are made; no release has all of them."""
_SWITCHES = """
aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling
calculate-kv-scales cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb
disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
disable-frontend-multiprocessing disable-hybrid-kv-cache-manager disable-log-requests
disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window
disable-uvicorn-access-log enable-auto-tool-choice enable-chunked-prefill enable-dbo
enable-eplb enable-expert-parallel enable-force-include-usage enable-log-outputs
enable-log-requests enable-mfu-metrics enable-prompt-embeds enable-prompt-tokens-details
enable-request-id-headers enable-return-routed-experts enable-server-load-tracking
enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint
exclude-tools-when-tool-choice-none fully-sharded-loras headless interleave-mm-strings
kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack
mm-encoder-only return-tokens-as-token-ids skip-mm-profiling skip-tokenizer-init
trust-remote-code trust-request-chat-template
"""
VALUELESS = SWITCHES | frozenset(_SWITCHES.split())
"""Switches: no release that has one takes a value behind it."""
_NAME = re.compile(r"--([a-z][\w-]+)")
_OPTION = re.compile(r"--[A-Za-z][\w.-]*\+?(?:=|$)")
_JOINED = re.compile(r"--?[A-Za-z][^=]*=|-O\d$")
_PLACE = Path(__file__).with_name("vllm_options.json")


def names_of(read: Callable[[str], bytes | None]) -> frozenset[str]:
    """The options of a release, without dashes in front and without ``no-`` forms.

    Args:
        read: gives any of its files by the path; None for one that it does not have.
    """
    found: set[str] = set()
    for path in FILES:
        for node in ast.walk(ast.parse(read(path) or b"")):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = _NAME.fullmatch(node.value)
                found |= {named[1]} if named else set()
            elif isinstance(node, ast.ClassDef) and "Frontend" in node.name:
                # Each field of the server's arguments becomes an option.
                targets = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return frozenset(name.replace("_", "-") for name in found)


def build(names: Mapping[str, frozenset[str]]) -> str:
    """The text of the file, of the options of every release in their order."""
    releases = list(names)
    spans: dict[str, list[list[str]]] = {}
    for name in sorted(frozenset[str]().union(*names.values())):
        for place, release in enumerate(releases):
            if name not in names[release]:
                continue
            runs = spans.setdefault(name, [])
            if runs and place and runs[-1][1] == releases[place - 1]:
                runs[-1][1] = release
            else:
                runs.append([release, release])
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(runs)}" for name, runs in spans.items())
    return f'{{"releases": {json.dumps(releases)},\n "options": {{\n{rows}\n}}}}\n'


@cache
def _load() -> tuple[frozenset[Version], Mapping[str, tuple[tuple[Version, Version], ...]]]:
    data = json.loads(_PLACE.read_text("utf-8"))
    return frozenset(map(Version, data["releases"])), {
        name: tuple((Version(first), Version(last)) for first, last in runs)
        for name, runs in data["options"].items()
    }


def known(vllm: Version | None) -> frozenset[str] | None:
    """The options of a release, or of all where it is not known; None for one not looked at."""
    releases, options = _load()
    if vllm is None:
        return frozenset(options)
    public = Version(vllm.public)
    if public not in releases:
        return None
    return frozenset(
        name for name, runs in options.items() if any(a <= public <= b for a, b in runs)
    )


def newest() -> Version:
    """The newest release whose options are known."""
    return max(_load()[0])


def strangers(words: Sequence[str], vllm: Version | None) -> Iterator[tuple[int, str]]:
    """Long options that a release does not have, with their places; one may be a plugin's.

    The beginning of a name may stand for the whole.
    """
    names = known(vllm)
    if names is None:
        return
    value = -1
    for place, word in enumerate(words):
        if word == "--":
            return
        if place == value or not _OPTION.match(word):
            continue
        given = word[2:].partition("=")[0]
        head, dot, _ = given.partition(".")
        if dot and "=" not in word:
            value = place + 1
        name = head.replace("_", "-")
        plain = name.removeprefix("no-")
        if not any(one.startswith((name, plain)) for one in names):
            yield place, name


def strays(words: Sequence[str]) -> tuple[str, ...]:
    """Words behind ``serve`` that are certainly no option's value, the model among them."""
    found: list[str] = []
    free, value = True, -1
    for place, word in enumerate(words):
        if word == "--":
            break
        if place == value or not word.startswith("-"):
            if free and place != value:
                found.append(word)
            # What stands behind a value may be another one of the same option.
            continue
        name = word.lstrip("-").partition("=")[0]
        head, dot, _ = name.partition(".")
        if dot and "=" not in word:
            value, free = place + 1, True
            continue
        switch = full_name(head.replace("_", "-")).removeprefix("no-")
        free = bool(_JOINED.match(word)) or (word.startswith("--") and switch in VALUELESS)
    return tuple(found)
