"""The folders that an LMCache configuration keeps chunks in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .schema import EXTRA

_KEYS = ("gds_path", "local_disk", "weka_path")
_INNER = re.compile(r"nixl_path|fs_base_path|remote_storage_plugin\..+\.base_path")
"""Names inside of ``extra_config``."""
_ON_FILES = re.compile(r"fs://[^/]*(?=/)")


def tier_folders(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The absolute ones, in the order of the keys.

    Args:
        values: of the file; a value may name several folders, with commas between.
    """
    found = (folder for value in _given(values) for folder in _parts(value))
    # The placeholder for no folder lies below /dev/null.
    return tuple(dict.fromkeys(one for one in found if not one.startswith("/dev/null")))


def _given(values: Mapping[str, Any]) -> Iterator[str]:
    given = [values.get(key) for key in _KEYS]
    url = values.get("remote_url")
    if isinstance(url, str) and _ON_FILES.match(url):
        given.append(_ON_FILES.sub("", url, count=1).partition("?")[0])
    inner = values.get(EXTRA)
    for name, value in inner.items() if isinstance(inner, dict) else ():
        if isinstance(name, str) and _INNER.fullmatch(name):
            given += value if isinstance(value, list) else [value]
    return (one for one in given if isinstance(one, str))


def _parts(value: str) -> list[str]:
    parts = [one.strip().removeprefix("file://") for one in value.split(",") if one.strip()]
    if all(part.startswith("/") for part in parts):
        return parts
    # A comma is a part of a name where what follows it is no path.
    return [whole] if (whole := value.removeprefix("file://")).startswith("/") else []
