"""Has the target's interpreter import files as they were before kvpatch; the disk stays as it is.

Runs in the target, with Python 3.9 or newer; nothing of kvpatch.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import Any


class Originals(importlib.abc.MetaPathFinder):
    """Finds the modules as usual, and gives them the source of their originals."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        self.busy: set[str] = set()

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> Any:
        """The usual spec with the original's source."""
        if fullname not in self.sources or fullname in self.busy:
            return None
        self.busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.busy.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        source = Path(self.sources[fullname]).read_bytes()

        def execute(module: Any) -> None:
            code = compile(source, str(spec.origin), "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def put_back(sources: dict[str, str]) -> list[str]:
    """From now on these modules (name to path of the original) are the originals.

    Returns:
        The modules that were forgotten, so that they are imported anew.
    """
    sys.meta_path.insert(0, Originals(sources))
    stale = {name for name in sources if name in sys.modules}
    # A subclass or an imported name keeps the patched code alive in the module that has it.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and any(
            getattr(value, "__module__", None) in sources for value in vars(module).values()
        ):
            stale.add(name)
    for name in stale:
        parent, _, child = name.rpartition(".")
        del sys.modules[name]
        if parent in sys.modules and hasattr(sys.modules[parent], child):
            delattr(sys.modules[parent], child)
    return sorted(stale)
