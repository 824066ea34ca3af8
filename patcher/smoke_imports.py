"""Calls back when a module of the target has been imported, whoever imports it.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when a module has been executed, whoever imports it."""

    def __init__(self, name: str, call: Callable[[Any], None]) -> None:
        self.name = name
        self.call = call
        self.busy = False

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> Any:
        """The usual spec, with a loader that calls back."""
        if fullname != self.name or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.busy = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call(module: Any) -> None:
            execute(module)
            self.call(module)

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def after_import(name: str, call: Callable[[Any], None]) -> None:
    """Call ``call`` with the module once it is imported, or at once where it is already."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))
