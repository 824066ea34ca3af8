"""Makes what is generated: the catalogue of planned releases, and the README's patch table."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "tests"))

from kvpatch import catalogue, series  # noqa: E402
from kvpatch.readme import with_patch_table  # noqa: E402
from packaging.specifiers import SpecifierSet  # noqa: E402
from packaging.version import Version  # noqa: E402
from releases import lmcache_releases, release_file, vllm_releases  # noqa: E402


def main() -> None:
    """Write both files into the checkout."""
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
    readme = CHECKOUT / "README.md"
    readme.write_text(with_patch_table(readme.read_text(), chosen))
    count = sum(map(len, releases.values()))
    print(f"{count} releases, {len(chosen.members)} patches")


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


if __name__ == "__main__":
    main()
