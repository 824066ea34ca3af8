"""The text form of a journal: JSON, of which nothing is trusted when it is read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .ledger import BASES, PHASES, SCHEMA, DistributionState, Entry, Journal, Step, check_path
from .outcome import ExitCode, KvpatchError
from .target_file import Shape

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TRANSACTION = re.compile(r"[0-9A-Za-z-]{1,64}")
_AGAIN = "reinstall the patched distributions, move that folder aside, then run kvpatch apply"


def render(journal: Journal) -> bytes:
    """The journal as JSON text, which any locale can read."""
    return (json.dumps(_in_utf8(_out(journal)), indent=1, sort_keys=True) + "\n").encode()


def _in_utf8(data: Any) -> Any:
    """The same, with paths as a locale of UTF-8 has them: another one has other characters."""
    if sys.getfilesystemencoding() == "utf-8":
        return data
    if isinstance(data, dict):
        return {_in_utf8(key): _in_utf8(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_in_utf8(item) for item in data]
    return os.fsencode(data).decode("utf-8", "surrogateescape") if isinstance(data, str) else data


def _out(journal: Journal) -> dict[str, Any]:
    return {
        "schema": journal.schema,
        "kvpatch": journal.kvpatch,
        "site": journal.site,
        "site_as_given": journal.site_as_given,
        "transaction": journal.transaction,
        "phase": journal.phase,
        "participants": list(journal.participants),
        "prefixes": list(journal.prefixes),
        "distributions": {
            name: {"version": state.version, "record_sha256": state.record_sha256}
            for name, state in journal.distributions.items()
        },
        "entries": {
            path: {**vars(entry), "patches": dict(entry.patches)}
            for path, entry in journal.entries.items()
        },
        "steps": {
            path: {"before": step.before and vars(step.before), "after": vars(step.after)}
            for path, step in journal.steps.items()
        },
        "former": _out(journal.former) if journal.former else None,
    }


def parse(text: bytes, where: str) -> Journal:
    """Read a journal, trusting nothing in it.

    Args:
        text: the bytes of the file.
        where: its folder, for messages.

    Raises:
        KvpatchError: ``journal-damaged``, ``journal-newer`` or ``journal-hostile``; exit 3.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is not an object")
        schema = data["schema"]
        if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA:
            raise KvpatchError(
                "journal-newer",
                f"the journal in {where} has schema {_short(schema)}, and this kvpatch knows "
                f"{SCHEMA}: it was written by a newer kvpatch "
                f"({str(data.get('kvpatch'))[:_LONGEST]})",
                "upgrade kvpatch, then run the command again",
                ExitCode.REFUSED,
            )
        return _journal(data, nested=False)
    except _HostileError as error:
        raise KvpatchError(
            "journal-hostile", f"the journal in {where} names {error}", _AGAIN, ExitCode.REFUSED
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "it has not the shape of a journal"
        if isinstance(error, KeyError):
            what = f"it has no {error}"
        elif isinstance(error, UnicodeDecodeError):
            what = "it is not text"
        elif isinstance(error, ValueError):
            what = str(error)
        raise KvpatchError(
            "journal-damaged",
            f"the journal in {where} can't be read: {what}",
            _AGAIN,
            ExitCode.REFUSED,
        ) from None


class _HostileError(Exception):
    pass


def _journal(data: Any, *, nested: bool) -> Journal:
    if type(data["schema"]) is not int or data["schema"] != SCHEMA:
        raise ValueError(f"schema {_short(data['schema'])} is not known")
    journal = Journal(
        schema=SCHEMA,
        kvpatch=_text(data["kvpatch"]),
        site=_absolute(data["site"]),
        site_as_given=_absolute(data["site_as_given"]),
        transaction=_match(_TRANSACTION, data["transaction"]),
        phase=_one_of(("applied",) if nested else PHASES, data["phase"]),
        participants=tuple(_absolute(item) for item in _list(data["participants"])),
        prefixes=tuple(_absolute(item) for item in _list(data["prefixes"])),
        distributions=_map(data["distributions"], _text, _distribution),
        entries={
            path: _entry(path, item) for path, item in _map(data["entries"], _path, _same).items()
        },
        steps=_map(data["steps"], _path, _step),
        former=None if data["former"] is None else _journal(data["former"], nested=True),
    )
    for path, step in journal.steps.items():
        entries = journal.of(path)
        originals = {entry.original for entry in entries}
        known = originals if step.before is None else originals | {e.after for e in entries}
        if step.after.digest not in known:
            raise _HostileError(f"a step for {_short(path)}, which no entry speaks of")
    return journal


def _distribution(data: Any) -> DistributionState:
    digest = _text(data["record_sha256"])
    return DistributionState(_text(data["version"]), _match(_DIGEST, digest) if digest else "")


def _entry(path: str, data: Any) -> Entry:
    if _text(data["path"]) != path:
        raise _HostileError(f"{_short(data['path'])} under another name")
    return Entry(
        path=path,
        distribution=_text(data["distribution"]),
        original=_match(_DIGEST, data["original"]),
        after=_match(_DIGEST, data["after"]),
        mode=_mode(data["mode"]),
        link=None if data["link"] is None else _text(data["link"]),
        patches=_map(data["patches"], _text, _text),
        basis=_one_of(BASES, data["basis"]),
    )


def _step(data: Any) -> Step:
    before = data["before"]
    return Step(None if before is None else _shape(before), _shape(data["after"]))


def _shape(data: Any) -> Shape:
    link = data["link"]
    mode, digest = _mode(data["mode"]), _match(_DIGEST, data["digest"])
    return Shape(digest, mode, None if link is None else _text(link))


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{_short(value)} is not a text")
    return os.fsdecode(value.encode("utf-8", "surrogateescape"))


def _short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 80


def _match(pattern: re.Pattern[str], value: Any) -> str:
    if not pattern.fullmatch(_text(value)):
        raise _HostileError(f"{_short(value)}, which kvpatch never writes")
    return str(value)


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError(f"{_short(value)} is none of {', '.join(choices)}")
    return str(value)


def _mode(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 0o7777:
        raise ValueError(f"{_short(value)} is not a file mode")
    return value


def _absolute(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/") or ".." in text.split("/"):
        raise _HostileError(f"{_short(text)}, which is not an absolute path")
    return text


def _path(value: Any) -> str:
    try:
        return check_path(_text(value))
    except ValueError:
        raise _HostileError(f"{_short(value)}, which does not stay below the site folder") from None


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{_short(value)} is not a list")
    return value


def _same(value: Any) -> Any:
    return value


_T = TypeVar("_T")


def _map(value: Any, key: Callable[[Any], str], item: Callable[[Any], _T]) -> dict[str, _T]:
    if not isinstance(value, dict):
        raise ValueError(f"{_short(value)} is not an object")
    return {key(name): item(content) for name, content in value.items()}
