"""What earlier runs of this very kvpatch found out, kept in the cache folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .digest import sha256
from .index import write_atomically
from .matrix import Release, Row
from .sealed import seal, unseal

if TYPE_CHECKING:
    from .series import Series


@dataclass(frozen=True)
class Kept:
    """Verdicts by the hashes of the two wheels.

    Of each release there are its own rows (``rows``), by the release of the other package that it
    was planned beside; of one of LMCache also its pairs, by the hash of the vLLM wheel.
    """

    folder: Path

    @classmethod
    def by(cls, series: Series, cache: Path) -> Kept:
        """Those of this series and of this checker's code."""
        texts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
        digest = sha256(b"\0".join([series.digest.encode(), *texts]))[:16]
        return cls(cache / "verdicts" / digest)

    def of(self, release: Release) -> dict[str, Any]:
        """What is kept of one release; nothing where its bytes have no name."""
        if release.key is None:
            return {}
        try:
            found: dict[str, Any] = json.loads(unseal(self._place(release).read_bytes()))
            return found
        except (OSError, ValueError):
            return {}

    def keep(self, release: Release, found: Mapping[str, Any]) -> None:
        """Put that there for the next run.

        Raises:
            KvpatchError: ``no-cache``, exit 4.
        """
        if release.key is not None:
            write_atomically(self._place(release), seal(json.dumps(found).encode()))

    def _place(self, release: Release) -> Path:
        return self.folder / f"{release.package}-{release.version}-{str(release.key)[:16]}.json"


def remembered(row: Row, beside: Release, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The memory with a row that was planned beside that release; unchanged by one of an error."""
    if row.error is not None:
        return dict(memory)
    told = {"patches": [dict(patch) for patch in row.patches], "registered": row.registered}
    return {**memory, "rows": {**memory.get("rows", {}), str(beside.version): told}}


def recalled(release: Release, beside: Release, memory: Mapping[str, Any]) -> Row | None:
    """The row of a release beside another, as it was kept; None where none is."""
    known = memory.get("rows", {}).get(str(beside.version))
    if known is None:
        return None
    return Row(
        release.package,
        str(release.version),
        release.name,
        tuple(known["patches"]),
        registered=bool(known["registered"]),
        key=release.key,
    )
