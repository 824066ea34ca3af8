"""Building a fork: the wheel is found or fetched, planned on, and written anew."""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from . import catalogue, revision
from .beside import doubt, foresee, incurable, package_of, unreleased
from .codebase import Facts
from .compat import after, side
from .contract import unloadable
from .download import download
from .fork import (
    Fork,
    Original,
    WheelTree,
    make_fork,
    plan_fork,
    read_original,
    refusal,
)
from .fsops import environment_error
from .outcome import ExitCode, KvpatchError, Report
from .pairs import load
from .plan import Plan, as_applied
from .report import patches_text
from .report_data import file_data, patch_data
from .series import discover
from .target_probe import compile_error
from .tree import PACKAGES, Package
from .wheel import Wheel
from .wheel_copy import write
from .workshop import workshop

if TYPE_CHECKING:
    from .installer import Say

DEFAULT = "vllm"


@dataclass(frozen=True)
class Request:
    """What the user asked for: a wheel's path or a version, and where the fork is to go.

    ``distribution`` is what a version is a release of, ``beside`` the release of the other package
    that the fork will run beside.
    """

    source: str
    output: Path
    distribution: str | None = None
    beside: str | None = None
    force: bool = False


def build(asked: Request, say: Say) -> Report:
    """Write the fork that was asked for, whole or not at all.

    Raises:
        KvpatchError: where there is no wheel to plan on, or the fork can't be written.
    """
    beside = None if asked.beside is None else _version(asked.beside, "--beside")
    wanted = None if _is_path(asked.source) else _version(asked.source, "WHEEL|VERSION")
    if asked.output.exists() and not asked.output.is_dir():
        raise KvpatchError(
            "no-folder",
            f"{asked.output} is not a folder",
            "name a folder for the new wheel with -o; it is made where it is not there",
            ExitCode.USAGE,
        )
    try:
        if wanted is None:
            return _build(asked, Path(asked.source), beside)
        name = asked.distribution or DEFAULT
        series = discover()
        foresee(series, load(), name, wanted, beside)
        # A fork carries it: where there is none, that is told before the download.
        revision.number(series)
        package = package_of(name)
        if beside is not None and package is not None:
            told = unreleased(load(), package, beside, online=True)
            if told:
                say(told)
        with _writing(asked.output), workshop(asked.output) as folder:
            path, yanked = download(name, wanted, folder, say)
            notes = (f"{name} {wanted} was yanked from the index by its makers",) if yanked else ()
            made = _build(asked, path, beside)
            return replace(made, notes=(*notes, *made.notes))
    except KeyboardInterrupt:
        raise KvpatchError(
            "interrupted",
            "interrupted; a wheel is there whole or not at all",
            "run the command again",
            ExitCode.ENVIRONMENT,
        ) from None


def _build(asked: Request, path: Path, beside: Version | None) -> Report:
    with Wheel(path) as wheel:
        original = read_original(wheel)
        given = asked.distribution
        if given and canonicalize_name(given) != canonicalize_name(original.distribution):
            raise KvpatchError(
                "wrong-distribution",
                f"{path.name} is a wheel of {original.distribution}, not of {given}",
                "leave --distribution away where a wheel is given",
                ExitCode.USAGE,
            )
        tree = WheelTree(wheel, original, {})
        pair = {}
        if beside is not None:
            others = [name for name in PACKAGES if name not in tree.own]
            tree = WheelTree(wheel, original, {name: Package(name, beside) for name in others})
            if len(others) == 1:
                pair = {tree.own[0]: original.version, others[0]: beside}
        series = discover()
        found, version = plan_fork(tree, series, revision.number(series), catalogue.load())
        data = _data(asked, original, found)
        error = refusal(tree, found) or _uncompiled(found)
        error = error or incurable(load(), pair, _lacking(tree, found))
        title = f"{original.distribution} {original.version}, from {path.name}"
        if error is not None:
            text = [title, *(["", patches_text(found)] if found.patches else [])]
            return Report("fork", "\n".join(text), data, error.exit_code, (error,))
        made = make_fork(tree, found, version)
        target = asked.output / made.filename
        written = _put(wheel, made, target, force=asked.force)
    done = as_applied(found)
    lines = [title, "", patches_text(done), ""]
    lines.append(f"{'wrote' if written else 'was there already, byte for byte:'} {target}")
    lines.append("beside METADATA and RECORD it differs from the original in")
    lines += [f"    {file.path}" for file in found.changes]
    data |= {
        "fork": {
            "version": str(made.version),
            "path": str(target.absolute()),
            "changed": sorted(made.renamed(name) for name in made.contents),
        },
        "written": written,
        "patches": [patch_data(patch) for patch in done.patches],
    }
    doubts = ""
    if beside is not None and pair:
        doubts = unreleased(load(), tree.own[0], beside) or doubt(load(), pair)
    return Report("fork", "\n".join(lines), data, notes=(doubts,) if doubts else ())


def _is_path(source: str) -> bool:
    return source.endswith(".whl") or os.sep in source


def _version(text: str, what: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise KvpatchError(
            "bad-version",
            f"{text!r} is not a version" + (" and no wheel" if what != "--beside" else ""),
            f"{what} takes such as 0.32.0" + ("" if what == "--beside" else " or dist/x.whl"),
            ExitCode.USAGE,
        ) from None


def _uncompiled(found: Plan) -> KvpatchError | None:
    for file in found.changes:
        if file.after is not None and (why := compile_error(file.path, file.after)):
            return KvpatchError(
                "does-not-compile",
                f"the patched {file.path} does not compile with this Python: {why}",
                "nothing was written; run kvpatch with the Python that the wheel is for",
            )
    return None


def _lacking(tree: WheelTree, found: Plan) -> str:
    """What the fork lacks of the connector; empty for nothing, and for a wheel without LMCache."""
    own = side(after(tree, found), "lmcache", (), Facts()) if "lmcache" in tree.own else None
    return unloadable(own.code) if own is not None else ""


def _put(wheel: Wheel, made: Fork, target: Path, *, force: bool) -> bool:
    """Write the fork under its name once it is whole; whether it was not there already.

    Raises:
        KvpatchError: ``exists``, where another file has that name; or what the disk refuses.
    """
    with _writing(target), workshop(target.parent) as folder:
        draft = folder / target.name
        with draft.open("xb") as out:
            write(wheel, out, made.contents, made.renamed)
            os.fsync(out.fileno())
        if os.path.lexists(target):
            if target.is_file() and filecmp.cmp(draft, target, shallow=False):
                return False
            if not force:
                raise KvpatchError(
                    "exists",
                    f"{target} is there already with other contents, and was left as it is",
                    "name another folder, or write over it with --force",
                )
        draft.replace(target)
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return True


@contextlib.contextmanager
def _writing(what: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Of a failed write the system does not say which file it was.
        error.filename = error.filename or str(what)
        raise environment_error(error) from error


def _data(asked: Request, original: Original, found: Plan) -> dict[str, Any]:
    return {
        "source": asked.source,
        "distribution": original.distribution,
        "version": str(original.version),
        "beside": asked.beside,
        "fork": None,
        "written": False,
        "patches": [patch_data(patch) for patch in found.patches],
        "files": [file_data(file) for file in found.files],
    }
