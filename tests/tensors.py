"""torch for the tests that run what patches insert."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

WITHOUT = "KVPATCH_TESTS_WITHOUT_TORCH"
"""Set where torch is left out on purpose; else a torch that is not there is a failure."""


def load_torch() -> Any:
    """The real torch."""
    if os.environ.get(WITHOUT):
        return pytest.importorskip("torch")
    return importlib.import_module("torch")
