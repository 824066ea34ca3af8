"""The argument parser of a vLLM release, run from that release's own file, with a few options.

Nothing else of vLLM is needed for it. The options stand in for vLLM's: same names, same kinds.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import re
import sys
import textwrap
from collections import defaultdict
from functools import cache
from typing import Any, NoReturn, Union

import yaml
from packaging.version import Version
from releases import release_file

_Definition = ast.ClassDef | ast.FunctionDef


class Log(logging.Logger):
    """vLLM's logger has one method more."""

    def warning_once(self, *arguments: object) -> None:
        """Say nothing."""


@cache
def parser_class(release: str) -> type[argparse.ArgumentParser]:
    """FlexibleArgumentParser as released."""
    tree = ast.parse(release_file("vllm", release, _home(Version(release))))
    defined = {
        node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    future = ast.parse("from __future__ import annotations").body
    module = ast.Module([*future, *_needed("FlexibleArgumentParser", defined)], [])
    names: dict[str, Any] = {
        **{name: getattr(argparse, name) for name in dir(argparse) if name[:1].isupper()},
        "_ArgumentGroup": argparse._ArgumentGroup,
        "argparse": argparse,
        "json": json,
        "re": re,
        "sys": sys,
        "textwrap": textwrap,
        "yaml": yaml,
        "defaultdict": defaultdict,
        "Any": Any,
        "NoReturn": NoReturn,
        "Union": Union,
        "logger": Log("vllm", logging.CRITICAL),
    }
    exec(compile(module, f"vllm-{release}", "exec"), names)
    found = names["FlexibleArgumentParser"]
    assert issubclass(found, argparse.ArgumentParser)
    return found


def _needed(name: str, defined: dict[str, _Definition]) -> list[_Definition]:
    """A definition with those of its module that it names, each before what names it."""
    found: dict[str, _Definition] = {}

    def add(one: str) -> None:
        if one in defined and one not in found:
            found[one] = defined[one]
            for node in ast.walk(defined[one]):
                if isinstance(node, ast.Name):
                    add(node.id)
            found[one] = found.pop(one)

    add(name)
    return list(found.values())


def _home(release: Version) -> str:
    if release < Version("0.9.2"):
        return "vllm/utils.py"
    if release < Version("0.11.1"):
        return "vllm/utils/__init__.py"
    return "vllm/utils/argparse_utils.py"


def _json(text: str) -> Any:
    """As vLLM's own types read it."""
    return None if text in ("", "None") else json.loads(text)


def _object(text: str) -> Any:
    """As vLLM's configurations read it, which have to be objects."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _object_or_level(text: str) -> Any:
    return {"level": int(text)} if text in ("0", "1", "2", "3") else _object(text)


def _add_compiling(parser: argparse.ArgumentParser, release: str) -> None:
    """The options for compiling, with the names that the release's own file has for them."""
    engine = release_file("vllm", release, "vllm/engine/arg_utils.py").decode()
    quote = r"['\"]"
    named = f"{quote}--compilation-config{quote},\\s*{quote}(-\\w+){quote}"
    short = re.search(named, engine)
    assert short is not None
    levels = Version(release) < Version("0.9.2")
    parser.add_argument(
        "--compilation-config", short[1], type=_object_or_level if levels else _object
    )
    if '"--optimization-level"' in engine:
        # Any text passes vLLM's parser, and the engine's configuration takes a level alone.
        parser.add_argument("--optimization-level", type=int, choices=range(4))


def _add_options(parser: argparse.ArgumentParser, release: str) -> None:
    switch = argparse.BooleanOptionalAction
    _add_compiling(parser, release)
    parser.add_argument("--model")
    parser.add_argument("--config", default="")
    parser.add_argument("--config-format")
    parser.add_argument("--port", type=int)
    parser.add_argument("--api-key")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--kv-transfer-config", type=_json)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int)
    parser.add_argument("--enable-prefix-caching", action=switch, default=None)
    parser.add_argument("--enforce-eager", action=switch, default=False)


def parsed(release: str, arguments: list[str]) -> dict[str, Any]:
    """What that release makes of ``vllm serve ...``, or of its module's arguments.

    Raises:
        SystemExit, Exception: as vLLM raises them.
    """
    kind = parser_class(release)
    top = kind(prog="vllm")
    if arguments[0] == "serve":
        serve = top.add_subparsers(dest="subparser").add_parser("serve")
        serve.add_argument("model_tag", nargs="?")
        _add_options(serve, release)
    else:
        _add_options(top, release)
    found = vars(top.parse_args(arguments))
    found["model"] = found.get("model_tag") or found["model"]
    return found
