"""What uv's own files say of indexes: the user's ``uv.toml``, then the host's."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_HOSTS = "allow-insecure-host"
_NO = ("n", "no", "f", "false", "off", "0")
_CODES = range(100, 1000)


@dataclass(frozen=True)
class UvIndex:
    """One index. A ``flat`` one is a page or folder with files of any distribution.

    By its ``name`` variables give its login. ``passed`` are statuses besides 404 after which uv
    goes on to the next.
    """

    url: str
    name: str = ""
    flat: bool = False
    passed: tuple[int, ...] = ()


@dataclass(frozen=True)
class UvFiles:
    """The index, further indexes, and places with wheels, in the order in which they rule.

    ``insecure`` are the hosts that are not verified. ``refused`` says that uv does not start with
    one of the files. ``no_index`` leaves but the places with wheels; ``strategy`` is how uv goes
    from one index to the next.
    """

    index: UvIndex | None = None
    extra: tuple[UvIndex, ...] = ()
    links: tuple[str, ...] = ()
    insecure: tuple[str, ...] = ()
    refused: bool = False
    no_index: bool = False
    strategy: str = ""


def read(environ: Mapping[str, str]) -> UvFiles:
    """What the files say; nothing where there are none, or where they can't be read.

    Files of a project are not for this: what is asked for belongs to no project. That uv refuses
    keys which it does not know is not followed: each of its releases knows others.

    Source: what uv takes (0.13). It joins a key of all files before it joins keys: what is said for
    ``uv pip`` rules over the rest in whichever file, and an index that is named over an index-url.
    """
    found = list(_tables(environ))
    sound = [(path, table) for path, table in found if table is not None and _is_sound(table)]
    parts = [*((path, _table(table.get("pip"))) for path, table in sound), *sound]

    def first(key: str) -> Any:
        return next((part[key] for _, part in parts if key in part), None)

    def every(key: str) -> Iterator[str]:
        for path, part in parts:
            texts = map(_text, _items(part.get(key)))
            yield from (_placed(path, text) for text in texts if text)

    items = [(path, _table(item)) for path, table in sound for item in _items(table.get("index"))]
    named = [(path, item) for path, item in items if not item.get("explicit")]
    index = [_index(path, item) for path, item in named if item.get("default")]
    for path, part in parts:
        if text := _text(part.get("index-url")):
            index.append(UvIndex(_placed(path, text)))
    extra = [_index(path, item) for path, item in named if not item.get("default")]
    extra += map(UvIndex, every("extra-index-url"))
    insecure = (_text(text) for _, table in sound for text in _items(table.get(_HOSTS)))
    return UvFiles(
        index[0] if index else None,
        tuple(dict.fromkeys(extra)),
        tuple(dict.fromkeys(every("find-links"))),
        tuple(dict.fromkeys(filter(None, insecure))),
        len(sound) < len(found),
        first("no-index") is True,
        _text(first("index-strategy")),
    )


def named(text: str) -> UvIndex:
    """The index that a variable names, which may be ``name=url``."""
    name, equals, url = text.partition("=")
    return UvIndex(url, name) if equals and "/" not in name else UvIndex(text)


def login(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """What variables say is the login of the index of that name; None where they say nothing."""
    prefix = f"UV_INDEX_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"
    user, password = (environ.get(f"{prefix}_{part}") for part in ("USERNAME", "PASSWORD"))
    if not name or (user is None and password is None):
        return None
    return user or "", password or ""


def _index(path: Path, item: Mapping[str, Any]) -> UvIndex:
    return UvIndex(
        _placed(path, _text(item.get("url"))),
        _text(item.get("name")),
        item.get("format") == "flat",
        tuple(_items(item.get("ignore-error-codes"))),
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
    codes = [code for item in indexes for code in _several(item, "ignore-error-codes")]
    if not all(type(code) is int and code in _CODES for code in codes):
        return False
    texts = [item.get("url") for item in indexes]
    if any(item.get("format", "simple") not in ("simple", "flat") for item in indexes):
        return False
    for part in (table, pip):
        texts.append(part.get("index-url", ""))
        for key in ("extra-index-url", "find-links", _HOSTS):
            texts += _several(part, key)
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


def _several(part: Mapping[str, Any], key: str) -> list[Any]:
    """The items of a list; what is no item where it is no list."""
    value = part.get(key, [])
    return value if isinstance(value, list) else [None]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
