"""What the target interpreter is asked: what it would import, and whether sources compile.

Run in the target by :mod:`target_start`, so Python 3.9 syntax and the standard library alone. It
never imports the packages it looks for. Within kvpatch it answers the same for a plain folder.
"""
# os.path instead of pathlib, no importlib.metadata, and neither re, json nor typing where a plain
# installation does not take them: each costs more than the whole survey.
# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import sys
from stat import S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARKER = "@@kvpatch-probe@@"
PACKAGES = ("vllm", "lmcache", "flashinfer")
UNKNOWN_VERSION = "0+unknown"

if TYPE_CHECKING:
    Facts = dict[str, Any]


def survey(finders: list[Any], path: list[str]) -> Facts:
    """What importing each package would find, and the distribution it belongs to.

    Returns:
        ``packages`` by name, and ``leftovers``: folders of that name that are no package.
    """
    packages: Facts = {}
    leftovers: Facts = {}
    for name in PACKAGES:
        site, remains = _imported_from(name, finders, path)
        _note(name, site, remains, path, packages, leftovers)
    return {"packages": packages, "leftovers": leftovers}


def survey_folder(folder: str) -> Facts:
    """The same as :func:`survey` for one site folder, without any interpreter."""
    packages: Facts = {}
    leftovers: Facts = {}
    path = [folder, *path_lines(folder)]
    for name in PACKAGES:
        sites = [entry for entry in path if holds(entry, name)]
        sites += [] if sites else _editable_sites(folder, name)
        remains = [os.path.join(folder, name)] if os.path.isdir(os.path.join(folder, name)) else []
        _note(name, sites[0] if sites else None, remains, path, packages, leftovers)
    return {"packages": packages, "leftovers": leftovers}


def _note(
    name: str,
    site: str | None,
    remains: list[str],
    path: list[str],
    packages: Facts,
    leftovers: Facts,
) -> None:
    if site is not None:
        packages[name] = _describe(name, site, path)
    elif remains:
        leftovers[name] = remains


def _imported_from(name: str, finders: list[Any], path: list[str]) -> tuple[str | None, list[str]]:
    """The folder holding the package, or the folders of a namespace package of that name."""
    for finder in finders:
        try:
            is_path_finder = getattr(finder, "__name__", "") == "PathFinder"
            spec = finder.find_spec(name, path if is_path_finder else None)
        except Exception:  # noqa: S112 - someone else's import hook must not end the survey
            continue
        if spec is None:
            continue
        origin = spec.origin or ""
        if os.path.basename(origin) == "__init__.py" and os.path.isfile(origin):
            return os.path.dirname(os.path.dirname(os.path.abspath(origin))), []
        return None, [str(entry) for entry in spec.submodule_search_locations or ()]
    return None, []


def _describe(name: str, site: str, path: list[str]) -> Facts:
    facts: Facts = {
        "site": site,
        "distribution": name,
        "version": UNKNOWN_VERSION,
        "dist_info": None,
        "editable": _is_checkout(site),
        "editable_location": site if _is_checkout(site) else None,
        "shadowed": _shadowed(name, site, path),
        "rivals": [],
    }
    owners, location = claims(name, site, path)
    if not owners:
        facts["version"] = version_in_sources(os.path.join(site, name))
        return facts
    facts["distribution"], facts["version"] = name_and_version(owners[0])
    facts["dist_info"] = owners[0]
    facts["rivals"] = (
        [" ".join(name_and_version(owner)) for owner in owners] if len(owners) > 1 else []
    )
    location = location or _editable_url(owners[0])
    if location is None and owners[0].endswith(".dist-info"):
        facts.update(editable=False, editable_location=None)
    elif location is not None:
        facts.update(editable=True, editable_location=location)
    return facts


def claims(name: str, site: str, path: list[str]) -> tuple[list[str], str | None]:
    """The metadata folders that a package belongs to: several where its files don't tell whose.

    Returns:
        them, and where its sources are if they are those of an editable install.
    """
    found = _owners(name, site)
    if len(found) > 1:
        found = _matching(name, site, found)
    location = None
    if not found:
        found, location = _editable_owner(name, site, path)
    return found or _unproved_owners(name, site), location


def holds(site: str, name: str) -> bool:
    """Whether the package is in that folder."""
    return os.path.isfile(os.path.join(site, name, "__init__.py"))


def _shadowed(name: str, site: str, path: list[str]) -> list[str]:
    seen = {os.path.realpath(os.path.join(site, name))}
    later = []
    for entry in path:
        real = os.path.realpath(os.path.join(entry, name))
        if real not in seen and holds(entry, name):
            seen.add(real)
            later.append(entry)
    return later


def _metadata_folders(site: str, name: str) -> tuple[list[str], list[str]]:
    """A site folder's metadata folders: those named after the package, and the others."""
    named: list[str] = []
    others: list[str] = []
    try:
        entries = sorted(os.listdir(site))
    except OSError:
        return [], []
    for entry in entries:
        if entry.endswith((".dist-info", ".egg-info")) or entry == "EGG-INFO":
            folder = os.path.join(site, entry)
            (named if name in entry.lower() or entry == "EGG-INFO" else others).append(folder)
    return named, others


def _owners(name: str, site: str) -> list[str]:
    """The metadata folders whose RECORD lists the package's ``__init__.py``."""
    for folders in _metadata_folders(site, name):
        owners = [folder for folder in folders if _records(folder, name)]
        if owners:
            return owners
    return []


def _records(folder: str, name: str) -> bool:
    data = b"\n" + _read(os.path.join(folder, "RECORD"))
    path = f"{name}/__init__.py".encode()
    # uv leaves the paths of a wheel's RECORD as they are, "./" in front as well.
    return any(
        start + dot + path + end in data
        for start, end in ((b"\n", b","), (b'\n"', b'",'))
        for dot in (b"", b"./")
    )


def _records_anything(folder: str) -> bool:
    """Whether RECORD can be read and lists the metadata folder that it lies in."""
    own = os.path.basename(folder) + "/"
    return own.encode("utf-8", "surrogateescape") in _read(os.path.join(folder, "RECORD"))


def _unproved_owners(name: str, site: str) -> list[str]:
    """Metadata folders whose RECORD says nothing: by top_level.txt, then by name alone."""
    named, others = _metadata_folders(site, name)
    silent = [folder for folder in [*named, *others] if not _records_anything(folder)]
    claims = [folder for folder in silent if _top_level(folder, name)]
    return claims or [
        folder
        for folder in silent
        if folder in named and not os.path.exists(os.path.join(folder, "top_level.txt"))
    ]


def _matching(name: str, site: str, claims: list[str]) -> list[str]:
    """Of several owners, the one whose RECORD fits the files; all of them where that is unclear.

    Only files on which the RECORDs differ tell them apart. One that was edited later fits nobody.
    """
    import base64
    import hashlib

    listed = [_python_hashes(claim, name) for claim in claims]
    common = set(listed[0]).intersection(*listed[1:])
    telling = sorted(path for path in common if len({hashes[path] for hashes in listed}) > 1)
    telling.sort(key=lambda path: (path.count("/"), path))
    scores = [0] * len(claims)
    for path in telling[:40]:
        digest = hashlib.sha256(_read(os.path.join(site, path))).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        for index, hashes in enumerate(listed):
            scores[index] += hashes[path] == text
    best = [claim for claim, score in zip(claims, scores) if score]  # noqa: B905 - 3.10 syntax
    return best if len(best) == 1 else claims


def _python_hashes(folder: str, name: str) -> dict[str, str]:
    import re

    text = _read(os.path.join(folder, "RECORD")).decode("utf-8", "surrogateescape")
    pattern = rf'^"?(?:\./)?({re.escape(name)}/[^",\n]+\.py)"?,sha256=([\w=-]+?)=*,'
    return dict(re.findall(pattern, text, re.MULTILINE))


def _editable_owner(name: str, site: str, path: list[str]) -> tuple[list[str], str | None]:
    """The editable distribution that stands for a package outside its own site folder."""
    real = os.path.realpath(site)
    for entry in path:
        for folder in _metadata_folders(entry, name)[0]:
            location = _editable_url(folder)
            if location is not None and _is_below(real, os.path.realpath(location)):
                return [folder], location
        for link in _egg_links(entry):
            if os.path.realpath(link) == real:
                named, others = _metadata_folders(site, name)
                return [folder for folder in [*named, *others] if _top_level(folder, name)], site
    return [], None


def _top_level(folder: str, name: str) -> bool:
    return name.encode() in _read(os.path.join(folder, "top_level.txt")).split()


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _egg_links(folder: str) -> list[str]:
    try:
        names = [entry for entry in os.listdir(folder) if entry.endswith(".egg-link")]
    except OSError:
        return []
    texts = [os.fsdecode(_read(os.path.join(folder, entry))) for entry in names]
    return [text.splitlines()[0].strip() for text in texts if text.strip()]


def _editable_url(folder: str) -> str | None:
    """The source folder of an editable install, from ``direct_url.json``."""
    data = _read(os.path.join(folder, "direct_url.json"))
    if b"editable" not in data:
        return None
    import json

    try:
        facts = json.loads(data)
        if facts["dir_info"]["editable"] is not True:
            return None
        url = str(facts["url"])
    except (ValueError, KeyError, TypeError):
        return None
    from urllib.parse import unquote, urlsplit

    return os.path.abspath(unquote(urlsplit(url).path))


def _editable_sites(folder: str, name: str) -> list[str]:
    locations = [_editable_url(entry) for entry in _metadata_folders(folder, name)[0]]
    sites = [
        site
        for location in locations
        if location is not None
        for site in (location, os.path.join(location, "src"))
    ]
    return [site for site in [*sites, *_egg_links(folder)] if holds(site, name)]


def path_lines(folder: str) -> list[str]:
    """The folders that ``.pth`` files of a site folder add to the path."""
    added = []
    try:
        names = sorted(entry for entry in os.listdir(folder) if entry.endswith(".pth"))
    except OSError:
        return []
    for entry in names:
        for line in os.fsdecode(_read(os.path.join(folder, entry))).split("\n"):
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                added += [os.path.abspath(os.path.join(folder, line.rstrip()))]
    return [entry for entry in added if os.path.isdir(entry)]


def _is_checkout(site: str) -> bool:
    return any(os.path.isfile(os.path.join(site, file)) for file in ("pyproject.toml", "setup.py"))


def name_and_version(folder: str) -> tuple[str, str]:
    """The distribution of a metadata folder."""
    stem = os.path.basename(folder).rpartition(".")[0]
    name, _, version = stem.partition("-")
    files = [folder] if os.path.isfile(folder) else []
    files += [os.path.join(folder, file) for file in ("METADATA", "PKG-INFO")]
    for file in files:
        fields = _fields(_read(file).decode("utf-8", "replace"))
        if fields:
            return fields.get("Name", name), fields.get("Version", version or UNKNOWN_VERSION)
    return name, version or UNKNOWN_VERSION


def _fields(metadata: str) -> dict[str, str]:
    """Name and version, as far as the head of the metadata tells them."""
    fields = {}
    for line in metadata.replace("\r\n", "\n").partition("\n\n")[0].split("\n"):
        key, colon, value = line.partition(":")
        if colon and key in ("Name", "Version") and value.strip():
            fields[key] = value.split()[0]
    return fields


def version_in_sources(package: str) -> str:
    """The version that a package's own files name."""
    import re

    for file in ("_version.py", "version.py", "__init__.py"):
        text = _read(os.path.join(package, file)).decode("utf-8", "replace")
        found = re.search(r"^(?:__)?version(?:__)?\b[^'\"#\n]*=\s*['\"]([^'\"]+)", text, re.M)
        if found:
            return found.group(1)
    return UNKNOWN_VERSION


def _read(path: str) -> bytes:
    try:
        # A pipe must not keep anybody waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read() if S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""


def describe_interpreter() -> Facts:
    """The running interpreter, as far as it matters for the files it imports."""
    return {
        "executable": sys.executable,
        "version": list(sys.version_info[:3]),
        "cache_tag": sys.implementation.cache_tag or "",
        "pycache_prefix": sys.pycache_prefix,
        "prefix": sys.prefix,
    }


def compile_sources(request: list[dict[str, str]]) -> Facts:
    """The error of each source that does not compile, by path. Nothing of it is executed."""
    import base64
    import warnings

    warnings.simplefilter("ignore")
    errors: Facts = {}
    for entry in request:
        error = compile_error(entry["path"], base64.b64decode(entry["source_base64"]))
        if error:
            errors[entry["path"]] = error
    return errors


def compile_error(path: str, source: bytes) -> str:
    """Why a source does not compile, or nothing. It is not executed."""
    try:
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno or 0}: {error.msg}"
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(mode: str, marker: str) -> None:
    """Answer on standard output, behind the marker, with a dictionary as Python writes one."""
    os.chdir("/")  # Only now: which Python a shim starts may depend on the folder.
    answer = describe_interpreter()
    if mode == "compile":
        import json

        answer["errors"] = compile_sources(json.loads(sys.stdin.buffer.read()))
    else:
        answer.update(survey(sys.meta_path, sys.path))
    # Past sys.stdout, which a sitecustomize may have replaced, and past what runs at exit.
    data = f"\n{marker}{answer!a}\n".encode("ascii")
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)
