"""Journals that no longer fit the installed files, kept with their originals, never deleted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .fsops import sha256
from .journal import ARCHIVE, BLOBS, JOURNAL, Journal, Store
from .ledger_format import render
from .outcome import KvpatchError

FOUND = "found"
"""The folder of an archive that holds files as others had changed them."""


def has_copy(folder: Path) -> bool:
    """Whether an archive holds files as others had changed them, and not a journal alone."""
    return (folder / FOUND).is_dir()


def keep(store: Store, journal: Journal, found: Mapping[str, bytes] | None = None) -> Path:
    """Copy a journal and the bytes it needs into the archive.

    Args:
        store: whose archive.
        journal: what to keep.
        found: files as they stand now, by path, that are about to be replaced.

    Returns:
        the archive's folder; the same one for the same contents, so that a run that was
        interrupted and starts again adds nothing.
    """
    found = found or {}
    text = render(journal)
    mark = sha256(text + "".join(f"{p}:{sha256(d)}\n" for p, d in sorted(found.items())).encode())
    disk = store.disk
    home = store.directory / ARCHIVE
    final = home / f"{journal.transaction}-{mark[:8]}"
    if final.is_dir():
        return final
    # Built beside the archive, where tidying finds what an interrupted run left of it.
    new = store.directory / f"{ARCHIVE}.new"
    store.clear(new)
    disk.mkdir(new / BLOBS)
    for digest in sorted(journal.blobs):
        # A damaged original can't be kept; that must not keep the journal from the archive.
        try:
            data = store.original(digest)
        except KvpatchError as error:
            if error.code != "original-damaged":
                raise
            continue
        disk.write_new(new / BLOBS / digest, data)
    disk.fsync_dir(new / BLOBS)
    for path, data in sorted(found.items()):
        copy = new / FOUND / path
        disk.mkdir(copy.parent)
        disk.write_new(copy, data)
        disk.fsync_dir(copy.parent)
    disk.write_new(new / JOURNAL, text)
    disk.fsync_dir(new)
    disk.mkdir(home)
    disk.replace(new, final)
    disk.fsync_dir(home)
    return final
