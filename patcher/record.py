"""RECORD, the list of hashes an installer leaves beside a distribution: what is pristine."""

from __future__ import annotations

import hashlib
from binascii import a2b_base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from .digest import sha256
from .links import read_regular

_STRONG = ("sha256", "sha384", "sha512")
"""What the format of wheels allows: sha256 or better, of what every Python has."""


class FileState(str, Enum):
    """What RECORD says of a file as it is now."""

    PRISTINE = "pristine"
    CHANGED = "changed"
    UNLISTED = "unlisted"
    MISSING = "missing"
    NO_FILE = "not a file"


@dataclass(frozen=True)
class Record:
    """The hashes of one distribution's files, by path below its site folder.

    ``digest`` is the sha256 of RECORD itself (None where there is none), ``problem`` a sentence
    that says why no hash is known at all.
    """

    digest: str | None = None
    problem: str | None = None
    _text: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, digest: str | None = None) -> Record:
        """Takes the text of a RECORD; lines that make no sense are passed over."""
        return cls(digest, None, "\n" + text)

    @classmethod
    def load(cls, dist_info: Path | None) -> Record:
        """Reads ``RECORD`` of a metadata folder; without one, a record that knows no hash."""
        if dist_info is None:
            return cls(problem="the package belongs to no installed distribution")
        try:
            data = read_regular(f"{dist_info}/RECORD")
        except OSError as error:
            return cls(problem=f"{dist_info / 'RECORD'} can't be read: {error.strerror}")
        if data is None:
            if (dist_info / "RECORD").exists():
                return cls(problem=f"{dist_info / 'RECORD'} can't be read: it is no plain file")
            return cls(problem=f"there is no RECORD in {dist_info}")
        if b"," not in data or b"\0" in data:
            return cls(problem=f"the RECORD in {dist_info} is not a list of files")
        text = data.decode("utf-8-sig", "surrogateescape")
        return cls.parse(text, sha256(data))

    def lists(self, relative_path: str) -> bool:
        """Whether the file is in RECORD, with a hash or without."""
        return next(self._stated(relative_path), None) is not None

    def missing(self, site: Path, package: str, suffixes: tuple[str, ...]) -> Iterator[str]:
        """The files of a package that it lists, of names that end so, and that are not there."""
        for line in self._text.split("\n"):
            path = line.partition(",")[0].strip('"').removeprefix("./")
            listed = path.startswith(f"{package}/") and path.endswith(suffixes)
            if listed and not (site / path).exists():
                yield path

    def hash_of(self, relative_path: str) -> str | None:
        """The recorded hash as lowercase hex; None without an entry or with a weak algorithm."""
        stated = self._hash(relative_path)
        return None if stated is None else stated[1]

    def fits(self, relative_path: str, content: bytes) -> bool | None:
        """Whether a file of that content is the recorded one; None where no hash can tell."""
        stated = self._hash(relative_path)
        if stated is None:
            return None
        algorithm, digest = stated
        return hashlib.new(algorithm, content).hexdigest() == digest

    def _hash(self, path: str) -> tuple[str, str] | None:
        hashes = {_hexadecimal(stated) for stated in self._stated(path)}
        # Two lines that disagree about a file prove nothing about it.
        return hashes.pop() if len(hashes) == 1 else None

    def _stated(self, path: str) -> Iterator[str]:
        """The hash field of each line about the file, found without splitting all lines."""
        if not path or path.startswith("/") or ".." in path.split("/") or "\n" in path:
            return
        quoted = path.replace('"', '""')
        for start in (f"\n{path},", f"\n./{path},", f'\n"{quoted}",', f'\n"./{quoted}",'):
            at = self._text.find(start)
            while at >= 0:
                begin = at + len(start)
                end = self._text.find("\n", begin)
                fields = self._text[begin : end if end >= 0 else None].split(",")
                if len(fields) == 2:
                    yield fields[0]
                at = self._text.find(start, begin)


def verify(site: Path, record: Record, paths: Iterable[str]) -> dict[str, FileState]:
    """The state of each file below the site folder.

    Raises:
        OSError: a file that is there can't be read.
    """
    return {path: _state(site, record, path) for path in paths}


def _state(site: Path, record: Record, path: str) -> FileState:
    try:
        data = (site / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return FileState.MISSING
    except IsADirectoryError:
        return FileState.NO_FILE
    same = record.fits(path, data)
    if same is None:
        return FileState.UNLISTED
    return FileState.PRISTINE if same else FileState.CHANGED


def _hexadecimal(stated: str) -> tuple[str, str] | None:
    """Algorithm and digest of the field of a line."""
    name, _, encoded = stated.strip().strip('"').partition("=")
    algorithm = name.lower()
    if algorithm not in _STRONG:
        return None
    encoded = encoded.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        raw = a2b_base64(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return None
    return (algorithm, raw.hex()) if len(raw) == hashlib.new(algorithm).digest_size else None
