"""A wheel file or a folder of sources as a release to be checked beside those on the index."""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from .digest import sha256_of
from .matrix import Release
from .outcome import ExitCode, KvpatchError
from .tree import PACKAGES, is_opaque

_MOST_MEMBER = 16 * 1024 * 1024
_VERSION = re.compile(r"^(?:__version__|version)\b[^\n]*?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Folder:
    """A folder that holds the package, such as a checkout or an unpacked wheel."""

    root: Path

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None where there is none of that path."""
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(self.root / path, error.strerror or str(error)) from None

    def opaque(self, module: str) -> bool:
        """Whether the folder has an extension of that module, or a folder of that name."""
        base = self.root.joinpath(*module.split("."))
        return base.is_dir() or any(base.parent.glob(f"{base.name}.*.so"))

    def metadata(self) -> bytes | None:
        """The text of METADATA of a wheel that was unpacked there; None where there is none."""
        found = sorted(self.root.glob("*.dist-info/METADATA"))
        return found[0].read_bytes() if len(found) == 1 else None

    def forget(self) -> None:
        """Nothing is held."""


class WheelFile:
    """A wheel on this disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
            raise _unreadable(path, f"it is not a wheel ({error})") from None
        self._names = frozenset(self._archive.namelist())

    def read(self, path: str) -> bytes | None:
        """The bytes of a member, None where there is none of that path."""
        if path not in self._names:
            return None
        try:
            if self._archive.getinfo(path).file_size > _MOST_MEMBER:
                raise _unreadable(self.path, f"its {path} is oversized")
            return self._archive.read(path)
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise _unreadable(self.path, f"its {path} is damaged ({error})") from None
        except NotImplementedError as error:
            raise _unreadable(self.path, f"its {path} can't be unpacked ({error})") from None

    def opaque(self, module: str) -> bool:
        """Whether the wheel has an extension of that module, or a folder of that name."""
        return is_opaque(self._names, module)

    def metadata(self) -> bytes | None:
        """The text of METADATA; None where there is none."""
        found = [name for name in self._names if name.endswith(".dist-info/METADATA")]
        return self.read(min(found, key=len)) if found else None

    def forget(self) -> None:
        """Nothing is held but the directory."""


def local_release(path: Path) -> Release:
    """The release that a folder or a wheel file holds.

    Raises:
        KvpatchError: ``bad-source``; exit 4.
    """
    if path.is_dir():
        folder = Folder(path)
        found = [name for name in PACKAGES if (path / name / "__init__.py").is_file()]
        if len(found) != 1:
            raise _unreadable(path, f"it holds {' and '.join(found) or 'neither vllm nor lmcache'}")
        return Release(found[0], _folder_version(folder, found[0]), folder, str(path))
    if not path.is_file():
        raise _unreadable(path, "there is no such file or folder")
    holder = WheelFile(path)
    names = [name for name in PACKAGES if holder.opaque(name)]
    if len(names) != 1:
        raise _unreadable(path, f"it holds {' and '.join(names) or 'neither vllm nor lmcache'}")
    try:
        _, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise _unreadable(path, str(error)) from None
    return Release(names[0], version, holder, path.name, sha256_of(path))


def _folder_version(folder: Folder, package: str) -> Version:
    texts = [
        (folder.read(f"{package}/{name}") or b"").decode("utf-8", "replace")
        for name in ("_version.py", "version.py", "__init__.py")
    ]
    told = [match.group(1) for text in texts if (match := _VERSION.search(text))]
    infos = sorted(folder.root.glob(f"{package}*.dist-info"))
    told += [info.name.removesuffix(".dist-info").rpartition("-")[2] for info in infos]
    versions = [version for text in told if (version := _version(text)) is not None]
    if versions:
        return versions[0]
    raise _unreadable(folder.root, f"nothing in it says which release of {package} it is")


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _unreadable(path: Path, why: str) -> KvpatchError:
    return KvpatchError(
        "bad-source",
        f"{path} can't be checked: {why}",
        "give a wheel, or a folder that holds the package vllm or lmcache with its _version.py",
        ExitCode.ENVIRONMENT,
    )
