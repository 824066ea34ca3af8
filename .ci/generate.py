"""Makes what is generated: planned releases, the pairs, LMCache's keys, the number, the tables."""

from __future__ import annotations

import contextlib
import shutil
import sys
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "tests"))

from kvpatch import (  # noqa: E402
    ahead,
    catalogue,
    key_history,
    option_names,
    pairs,
    revision,
    series,
    summary,
)
from kvpatch.readme import with_pair_table, with_tables  # noqa: E402
from kvpatch.schema import FILES  # noqa: E402
from kvpatch.schema_source import parse_schema, read_schema  # noqa: E402
from kvpatch.stack import default_cache  # noqa: E402
from kvpatch.supply import FIRST, Request  # noqa: E402
from kvpatch.validate import validate  # noqa: E402
from packaging.specifiers import SpecifierSet  # noqa: E402
from packaging.version import Version  # noqa: E402
from releases import (  # noqa: E402
    ReleaseFilesMissingError,
    lmcache_releases,
    release_file,
    variables_of,
    vllm_releases,
)


def main() -> None:
    """Write the files into the checkout."""
    chosen = series.discover()
    releases = {
        "vllm": {version: _files(chosen, "vllm", version) for version in vllm_releases()},
        "lmcache": {
            release.version: _files(chosen, "lmcache", release.version)
            for release in lmcache_releases()
            if not release.pre
        },
    }
    text = catalogue.build(chosen, releases)
    (CHECKOUT / "patcher" / "releases.json").write_text(text)
    numbered = CHECKOUT / "patcher" / "revision.json"
    numbered.write_text(revision.renumbered(numbered.read_text(), chosen))
    blending = CHECKOUT / "patcher" / "pairs.json"
    earlier = pairs.read(blending.read_text()) if blending.exists() else None
    asked = Request(dict.fromkeys(FIRST, ""), jobs=1)
    # What is read can be told only where nothing is known from earlier runs, and by one process.
    shutil.rmtree(default_cache() / "verdicts", ignore_errors=True)
    matrix = validate(asked, default_cache(), print)
    (CHECKOUT / "patcher" / "reads.json").write_text(ahead.build(matrix.reads))
    blending.write_text(summary.catalogue(matrix, asked, earlier))
    readme = CHECKOUT / "README.md"
    told = with_tables(readme.read_text(), chosen)
    readme.write_text(with_pair_table(told, pairs.read(blending.read_text())))
    (CHECKOUT / "patcher" / "lmcache_keys.json").write_text(keys())
    (CHECKOUT / "patcher" / "vllm_options.json").write_text(options())
    count = sum(map(len, releases.values()))
    print(f"{count} releases, {len(matrix.pairs)} pairs, {len(chosen.members)} patches")


def _files(chosen: series.Series, package: str, release: str) -> dict[str, bytes]:
    """The files of that release that a patch names for it."""
    version = Version(release)
    paths = {
        target.path
        for member in chosen.members
        if member.patch.distribution == package and member.patch.in_range(version)
        for target in member.patch.targets
        if SpecifierSet(target.versions).contains(version, prereleases=True)
    }
    return {path: release_file(package, release, path) for path in sorted(paths)}


def options() -> str:
    """The names of vLLM's options in every release."""

    def read(release: str, path: str) -> bytes | None:
        try:
            return release_file("vllm", release, path)
        except ReleaseFilesMissingError:
            return None

    names = {one: option_names.names_of(partial(read, one)) for one in vllm_releases()}
    return option_names.build(names)


def keys() -> str:
    """The history of LMCache's configuration keys and variables."""
    schemas = {}
    variables = {}
    for release in lmcache_releases():
        if ".dev" in release.version:
            continue
        files: dict[str, bytes] = {}
        for path in FILES:
            with contextlib.suppress(ReleaseFilesMissingError):
                files[path] = release_file("lmcache", release.version, path)
        schemas[release.version] = read_schema(files.get, release.version)
        variables[release.version] = variables_of(release.version)
    old = parse_schema(release_file("lmcache", "0.3.3", "lmcache/config.py"), "0.3.3")
    return key_history.build(schemas, sorted(old.keys), variables)


if __name__ == "__main__":
    main()
