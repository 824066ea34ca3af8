"""A bundle's scripts: they read the files beside them, and take one environment's programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from .coercion import CONFIG_VARIABLE
from .serving import quoted, shell

BIN = "SERVE_BIN"
"""Names another folder of programs than the environment's. vLLM warns of a name like its own."""
_PATCHES = ": another may lack the patches."
_HERE = 'here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")'


def start_script(
    top: Sequence[str],
    argv: Sequence[str],
    programs: Path | None,
    *,
    config: str = "",
    patched: bool = False,
) -> str:
    """A script that starts a command with the environment of ``vllm.env`` beside it.

    Args:
        top: comment lines.
        argv: the command; its first word is a program of the environment.
        programs: the absolute folder that has the programs; None where not known.
        config: name of LMCache's file beside the script; empty for none.
        patched: whether that environment has, or is to have, patches of kvpatch.
    """
    name = argv[0]
    lines = ["#!/usr/bin/env bash", *top, "set -eu", _HERE, "set -a", '. "$here/vllm.env"']
    if config:
        lines.append(f'{CONFIG_VARIABLE}="$here/{config}"')
    lines += ["set +a", f"bin=${{{BIN}:-}}"]
    if programs is not None:
        lines += [
            f"# The environment that this was made for{_PATCHES if patched else '.'}",
            f'[ -n "$bin" ] || bin={quoted(str(programs))}',
        ]
    lines += [
        'if [ -n "$bin" ]; then',
        f'  PATH="$bin:$PATH" found="$bin/{name}"',
        "else",
        f"  found=$(command -v {name} || true)",
        "fi",
        'if [ ! -x "$found" ]; then',
        f'  echo "$0: there is no {name} in ${{bin:-PATH}}" >&2',
        f'  echo "    give the bin folder of its environment: {BIN}=/srv/vllm/bin $0" >&2',
        "  exit 127",
        "fi",
        "start() {",
        indent(f'exec {shell(list(argv))} "$@"', "  "),
        "}",
        "# Options of this script are added; without any, `kvpatch lint` knows the whole command.",
        '[ $# -eq 0 ] || start "$@"',
        "start",
        "",
    ]
    return "\n".join(lines)
