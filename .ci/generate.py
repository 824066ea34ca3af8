"""Makes what is generated: the catalogue of planned releases, and the README's patch table."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "tests"))

from kvpatch import catalogue, series  # noqa: E402
from kvpatch.readme import with_patch_table  # noqa: E402
from releases import release_file, vllm_releases  # noqa: E402


def main() -> None:
    """Write both files into the checkout."""
    chosen = series.discover()
    paths = {
        target.path
        for member in chosen.members
        if member.patch.distribution == "vllm"
        for target in member.patch.targets
    }
    releases = {
        version: {path: release_file("vllm", version, path) for path in paths}
        for version in vllm_releases()
    }
    text = catalogue.build(chosen, "vllm", releases)
    (CHECKOUT / "patcher" / "releases.json").write_text(text)
    readme = CHECKOUT / "README.md"
    readme.write_text(with_patch_table(readme.read_text(), chosen))
    print(f"{len(releases)} releases, {len(chosen.members)} patches")


if __name__ == "__main__":
    main()
