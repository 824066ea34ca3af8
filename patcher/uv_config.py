"""What uv's own files say of indexes: the user's ``uv.toml``, then the host's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_HOSTS = "allow-insecure-host"
_NO = ("n", "no", "f", "false", "off", "0")


@dataclass(frozen=True)
class UvFiles:
    """The index, further indexes, and places with wheels, in the order in which they rule.

    ``insecure`` are the hosts that are not verified. ``refused`` says that uv does not start with
    one of the files. ``no_index`` leaves but the places with wheels; ``strategy`` is how uv goes
    from one index to the next.
    """

    index: str = ""
    extra: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    insecure: tuple[str, ...] = ()
    refused: bool = False
    no_index: bool = False
    strategy: str = ""


def read(environ: Mapping[str, str]) -> UvFiles:
    """What the files say; nothing where there are none, or where they can't be read.

    Files of a project are not for this: what is asked for belongs to no project. That uv refuses
    keys which it does not know is not followed: each of its releases knows others.
    """
    found = [_one(path, table) for path, table in _tables(environ)]
    return UvFiles(
        next((one.index for one in found if one.index), ""),
        tuple(dict.fromkeys(text for one in found for text in one.extra)),
        tuple(dict.fromkeys(text for one in found for text in one.links)),
        tuple(dict.fromkeys(text for one in found for text in one.insecure)),
        any(one.refused for one in found),
        any(one.no_index for one in found),
        next((one.strategy for one in found if one.strategy), ""),
    )


def _one(path: Path, table: Mapping[str, Any] | None) -> UvFiles:
    if table is None or not _is_sound(table):
        return UvFiles(refused=True)
    pip = _table(table.get("pip"))
    named = [_table(item) for item in _items(table.get("index"))]
    named = [item for item in named if not item.get("explicit")]
    default = [_text(item.get("url")) for item in named if item.get("default")]
    index = [*default, _text(table.get("index-url")), _text(pip.get("index-url"))]
    extra = [_text(item.get("url")) for item in named if not item.get("default")]
    links: list[str] = []
    for part in (table, pip):
        extra += map(_text, _items(part.get("extra-index-url")))
        links += map(_text, _items(part.get("find-links")))
    insecure = filter(None, map(_text, _items(table.get(_HOSTS))))
    first = next(filter(None, index), "")
    # What is said for `uv pip` rules there.
    no_index = pip.get("no-index", table.get("no-index")) is True
    strategy = _text(pip.get("index-strategy")) or _text(table.get("index-strategy"))
    return UvFiles(
        _placed(path, first),
        tuple(_placed(path, text) for text in extra if text),
        tuple(_placed(path, text) for text in links if text),
        tuple(insecure),
        no_index=no_index,
        strategy=strategy,
    )


def _placed(path: Path, text: str) -> str:
    """A place as a file names it: a path is one from the folder of that file."""
    return text if "://" in text or not text else str(path.parent / text)


def _is_sound(table: Mapping[str, Any]) -> bool:
    """Whether what is read here is of the kinds that uv takes."""
    pip, indexes = table.get("pip", {}), table.get("index", [])
    if not isinstance(pip, dict) or not isinstance(indexes, list):
        return False
    if _HOSTS in pip or not all(isinstance(item, dict) for item in indexes):
        return False
    texts = [item.get("url") for item in indexes]
    for part in (table, pip):
        texts.append(part.get("index-url", ""))
        for key in ("extra-index-url", "find-links", _HOSTS):
            several = part.get(key, [])
            texts += several if isinstance(several, list) else [None]
    return all(isinstance(text, str) for text in texts)


def _tables(environ: Mapping[str, str]) -> Iterator[tuple[Path, Mapping[str, Any] | None]]:
    """The files with what is in them; None for one that is none of TOML."""
    try:
        toml = import_module("tomllib")
    except ImportError:
        # Python 3.10 has none; the extra that reads indexes brings the one it came from.
        try:
            toml = import_module("tomli")
        except ImportError:
            return
    for path in _files(environ):
        table: Mapping[str, Any] | None = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            table = toml.loads(path.read_text("utf-8")) if path.exists() else {}
        yield path, table


def _files(environ: Mapping[str, str]) -> list[Path]:
    # With a value that says neither, uv does not start.
    if environ.get("UV_NO_CONFIG", "0").lower() not in _NO:
        return []
    if named := environ.get("UV_CONFIG_FILE"):
        return [Path(named)]
    home = Path(environ.get("HOME") or Path.home())
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    host = [Path(folder) / "uv" / "uv.toml" for folder in shared if folder]
    # uv takes one file of the host's: the first that is there.
    there = [path for path in (*host, Path("/etc/uv/uv.toml")) if path.is_file()]
    return [user / "uv" / "uv.toml", *there[:1]]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
