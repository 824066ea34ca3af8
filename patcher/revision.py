"""The number of the patch series, which a fork carries in its version: a newer one is greater.

``revision.json`` holds the number with the digest of the series that it stands for. ``make
generate`` adds one whenever the digest is another, so two series never share a number.
"""

from __future__ import annotations

import json
from pathlib import Path

from .outcome import ExitCode, KvpatchError
from .series import Series


def number(series: Series) -> int:
    """The number of the series that came with this kvpatch.

    Raises:
        KvpatchError: ``unnumbered``, where its patches were changed since they were numbered.
    """
    data = json.loads(Path(__file__).with_name("revision.json").read_text("utf-8"))
    if data["series"] != series.digest:
        raise KvpatchError(
            "unnumbered",
            "the patches were changed since they were numbered, and a fork carries that number",
            "reinstall kvpatch, or run `make generate` in the checkout that it comes from",
            ExitCode.BUG,
        )
    return int(data["revision"])


def renumbered(text: str, series: Series) -> str:
    """The text of ``revision.json`` for the series: as it was, or with the next number."""
    data = json.loads(text)
    if data["series"] != series.digest:
        data = {"revision": int(data["revision"]) + 1, "series": series.digest}
    return json.dumps(data, indent=1) + "\n"
