"""Loads what LMCache needs beyond Python, in the target interpreter.

Stands alone: run as a script with what to look for: ``extension`` or ``cufile`` and the site
folder, or ``installed`` and names of modules. Prints one line of JSON. The extension is loaded for
real, after torch, because nothing else shows whether its ABI fits.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

EXTENSIONS = ("c_ops", "cuda_ops")
GPUS = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""One of these is there where a driver of NVIDIA's or AMD's is."""


def extension(folder: str) -> dict[str, Any]:
    """Whether LMCache's own extension loads with the installed torch."""
    found: list[Path] = []
    for name in EXTENSIONS:
        found += Path(folder, "lmcache").glob(name + ".*.so")
    if not found:
        return {"there": False}
    gpu = any(Path(path).exists() for path in GPUS)
    answer: dict[str, Any] = {"there": True, "file": found[0].name, "gpu": gpu}
    try:
        import torch

        answer["torch"] = torch.__version__
        answer["cuda"] = bool(torch.cuda.is_available())
        answer["built_for_gpu"] = bool(torch.version.cuda or getattr(torch.version, "hip", None))
    except Exception as error:
        answer["torch_problem"] = one_line(error)
        return answer
    name = found[0].name.split(".")[0]
    try:
        spec = importlib.util.spec_from_file_location("lmcache." + name, str(found[0]))
        if spec is None or spec.loader is None:
            raise ImportError("it is no extension module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        answer["problem"] = one_line(error)
    return answer


def one_line(error: Exception) -> str:
    """An error as one line."""
    return (str(error).splitlines() or [""])[0][:300] or type(error).__name__


def loaded(name: str) -> str:
    """``ok`` where the loader finds a library, else why not."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return one_line(error)
    return "ok"


def cufile(folder: str) -> dict[str, Any]:
    """Which names of libcufile the loader finds, and where a wheel has it."""
    loads = {name: loaded(name) for name in ("libcufile.so", "libcufile.so.0")}
    wheels = [str(path) for path in Path(folder, "nvidia").glob("*/lib/libcufile.so*")]
    module = importlib.util.find_spec("cufile") is not None
    return {"loads": loads, "wheels": sorted(wheels), "module": module}


def installed(*modules: str) -> dict[str, Any]:
    """The names of the distributions that are there, and which modules can't be found.

    The markers of requirements are asked for this Python: ``environment`` has what they need of it.
    ``torch`` is the version of that distribution, with its local part; None where it is not there.
    """
    from importlib import metadata

    named = [dist.metadata["Name"] for dist in metadata.distributions() if dist.metadata]
    try:
        torch: str | None = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    python = ".".join(map(str, sys.version_info[:2]))
    return {
        "distributions": sorted({name for name in named if name}),
        "missing": [name for name in modules if not _is_there(name)],
        "torch": torch,
        "environment": {
            "python_version": python,
            "python_full_version": ".".join(map(str, sys.version_info[:3])),
        },
    }


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "installed":
        print(json.dumps(installed(*given)))
    else:
        print(json.dumps({"extension": extension, "cufile": cufile}[what](given[0])))
