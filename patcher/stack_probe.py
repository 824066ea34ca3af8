"""Loads what LMCache needs beyond Python, in the target interpreter.

Stands alone: run as a script with what to look for: ``extension`` or ``cufile``. Prints one line of
JSON. The extension is loaded for real, after torch, because nothing else shows whether its ABI fits.
"""

import ctypes
import glob
import importlib.util
import json
import os
import sys

EXTENSIONS = ("c_ops", "cuda_ops")


def extension(folder):
    """Whether LMCache's own extension loads with the installed torch."""
    found = []
    for name in EXTENSIONS:
        found += glob.glob(os.path.join(folder, "lmcache", name + ".*.so"))
    if not found:
        return {"there": False}
    answer = {"there": True, "file": os.path.basename(found[0])}
    try:
        import torch

        answer["torch"] = torch.__version__
        answer["cuda"] = bool(torch.cuda.is_available())
    except Exception as error:
        answer["problem"] = "torch: " + one_line(error)
        return answer
    name = os.path.basename(found[0]).split(".")[0]
    try:
        spec = importlib.util.spec_from_file_location("lmcache." + name, found[0])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        answer["problem"] = one_line(error)
    return answer


def one_line(error):
    """An error as one line."""
    return (str(error).splitlines() or [""])[0][:300] or type(error).__name__


def cufile(folder):
    """Which names of libcufile the loader finds, and where a wheel has it."""
    loads = {}
    for name in ("libcufile.so", "libcufile.so.0"):
        try:
            ctypes.CDLL(name)
            loads[name] = "ok"
        except OSError as error:
            loads[name] = one_line(error)
    wheels = glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libcufile.so*"))
    module = importlib.util.find_spec("cufile") is not None
    return {"loads": loads, "wheels": sorted(wheels), "module": module}


if __name__ == "__main__":
    work = {"extension": extension, "cufile": cufile}[sys.argv[1]]
    print(json.dumps(work(sys.argv[2])))
