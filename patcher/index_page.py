"""The files of one distribution that a page lists: one of an index, or any with links to files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path
from posixpath import basename
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.1, "
    "text/html;q=0.01"
)
"""What is asked for, as pip does."""

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = ("text/html", "application/vnd.pypi.simple.v1+html")
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_STATED = re.compile(r"(?:^|&)sha256=([0-9a-fA-F]+)")
# A name goes into names of the cache folder; the tags of a wheel's may be anything to its parser.
_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Wheel:
    """One wheel of one release: what the index says of it. ``size`` is in bytes.

    Where a release has but a source distribution, it is that, and ``sdist`` is true. The ``url`` of
    one on this disk has a fragment that is another once the file is.
    """

    distribution: str
    version: Version
    filename: str
    url: str
    size: int | None
    sha256: str | None
    yanked: bool
    sdist: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """The wheel as JSON has it."""
        return {**asdict(self), "version": str(self.version)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Wheel:
        """The wheel that :attr:`data` is of.

        Raises:
            KeyError, TypeError, ValueError: it is of none.
        """
        return cls(**{**data, "version": Version(data["version"])})

    @property
    def path(self) -> Path | None:
        """Where it is on this disk; None where it is not."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def login(self) -> bool:
        """Whether there is a login in its URL, which is not to be kept anywhere."""
        return "@" in urlsplit(self.url).netloc


@dataclass(frozen=True)
class _File:
    name: str
    url: str
    sha256: object = None
    size: object = None
    yanked: object = False


def files_of(content: bytes, kind: str, url: str, name: str) -> list[Wheel]:
    """The wheels and source distributions of a distribution, in the order of the page.

    What is no file of that distribution is passed over, and so is what an entry lacks. The version
    of the interface that the page says it has is not looked at: pip and uv don't either.

    Args:
        content: of the page.
        kind: its content type.
        url: of the page.
        name: of the distribution, normalized.

    Raises:
        ValueError, RecursionError: it is no such page.
    """
    told = kind.lower()
    if told.startswith(_JSON):
        return _files(_of_json(json.loads(content), url), name)
    require_page(kind)
    charset = _CHARSET.search(told)
    try:
        text = content.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        text = content.decode("utf-8", "replace")
    return _files(_of_html(text, url), name)


class ContentTypeError(ValueError):
    """An answer is neither of the two kinds of page."""


def require_page(kind: str) -> None:
    """See that a content type is that of a page, before what may be a wheel is read.

    Raises:
        ContentTypeError: it is not.
    """
    if not kind.lower().startswith((_JSON, *_HTML)):
        raise ContentTypeError(kind)


def files_in(folder: Path, name: str) -> list[Wheel]:
    """The same of a folder; ``folder`` may also be one such file itself.

    Raises:
        OSError: it can't be read.
    """
    found = []
    if not folder.exists():
        raise FileNotFoundError(folder)
    for path in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
        if path.is_file():
            about = path.stat()
            url = f"{path.absolute().as_uri()}#{about.st_size}-{about.st_mtime_ns}"
            found.append(_File(path.name, url, size=about.st_size))
    return _files(found, name)


def _files(found: Iterable[_File], name: str) -> list[Wheel]:
    wheels = []
    for file in found:
        if _NO_NAME.search(file.name):
            continue
        sdist = not file.name.endswith(".whl")
        try:
            if sdist:
                owner, version = parse_sdist_filename(file.name)
            else:
                owner, version, _, _ = parse_wheel_filename(file.name)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
        if owner != name:
            continue
        stated = str(file.sha256).lower()
        digest = stated if _SHA256.fullmatch(stated) else None
        size = file.size if isinstance(file.size, int) else None
        yanked = bool(file.yanked)
        wheels.append(Wheel(name, version, file.name, file.url, size, digest, yanked, sdist))
    return wheels


def _of_json(data: Any, url: str) -> Iterator[_File]:
    if not isinstance(data, dict) or not isinstance(data.get("files"), list):
        raise ValueError("no list of files")
    for entry in data["files"]:
        if not isinstance(entry, dict):
            continue
        name, at, hashes = entry.get("filename"), entry.get("url"), entry.get("hashes")
        if isinstance(name, str) and isinstance(at, str) and at:
            digest = hashes.get("sha256") if isinstance(hashes, dict) else None
            with contextlib.suppress(ValueError):
                where = urldefrag(urljoin(url, at)).url
                yield _File(name, where, digest, entry.get("size"), entry.get("yanked"))


def _of_html(text: str, url: str) -> Iterator[_File]:
    """By the URLs of the links: their texts may be cut short, or be anything."""
    parser = _Links()
    parser.feed(text)
    base = urljoin(url, parser.base or "")
    for attributes in parser.links:
        try:
            where, fragment = urldefrag(urljoin(base, (attributes["href"] or "").strip()))
        except ValueError:
            continue
        name = unquote(basename(urlsplit(where).path.rstrip("/")))
        stated = _STATED.search(fragment)
        yanked = "data-yanked" in attributes
        yield _File(name, where, stated and stated[1], yanked=yanked)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base: str | None = None
        self.links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "base" and self.base is None:
            self.base = found.get("href")
        elif tag == "a" and found.get("href"):
            self.links.append(found)
