"""LMCache's own configuration code of any release, executed with stand-ins for what it imports.

The stand-ins are torch-free modules for logging and the old configuration; everything that reads
a file or the environment is the release's own code, run in a child process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvpatch.schema import ADAPTERS, BASE, CONFIG, FILES, LOADER, Schema
from kvpatch.schema_source import read_schema
from releases import ReleaseFilesMissingError, release_file

SETTER = b"validate_and_set_config_value"
_CHILD = """
import json, logging, os, sys, types
answers, sys.stdout = sys.stdout, sys.stderr
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
def init_logger(name):
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [Keep(logging.WARNING)], False
    return logger
def load(folder):
    for name in [name for name in sys.modules if name.partition(".")[0] == "lmcache"]:
        del sys.modules[name]
    for name in ("lmcache", "lmcache.v1", "lmcache.logging", "lmcache.config", "requests"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["lmcache.config"].LMCacheEngineConfig = object
    sys.modules["lmcache"].config = sys.modules["lmcache.config"]
    sys.modules["lmcache.logging"].init_logger = init_logger
    sys.modules["lmcache.v1"].__path__ = [folder]
    from lmcache.v1 import config as module
    try:
        from lmcache.v1 import config_base as base
    except ImportError:
        base = module
    return module, getattr(base, "validate_and_set_config_value", None) or getattr(
        module, "_validate_and_set_config_value", None)
def run(module, setter, case):
    complaints.clear()
    for name in [name for name in os.environ if name.startswith("LMCACHE_")]:
        del os.environ[name]
    os.environ.update(case["environ"])
    try:
        if case["text"] is None:
            config = module.LMCacheEngineConfig.from_env()
            if case["validates"]:
                config.validate()
        else:
            if os.path.exists(sys.argv[1]):
                os.unlink(sys.argv[1])
            with open(sys.argv[1], "x", encoding="utf-8") as file:
                file.write(case["text"])
            config = module.LMCacheEngineConfig.from_file(sys.argv[1])
            if case["updates"]:
                config.update_config_from_env()
        for key, value in case["overrides"].items():
            setter(config, key, value)
        values = {name: getattr(config, name) for name in case["names"]}
        return {"values": values, "said": list(complaints), "stop": None}
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
        return {"values": {}, "said": list(complaints), "stop": told}
for line in sys.stdin:
    asked = json.loads(line)
    module, setter = load(asked["folder"])
    told = [run(module, setter, {**asked, **case}) for case in asked["cases"]]
    print(json.dumps(told), file=answers, flush=True)
"""


@cache
def files_of(release: str) -> Mapping[str, bytes]:
    """The files that a schema is read from, those that the release has."""
    found: dict[str, bytes] = {}
    for path in FILES:
        with contextlib.suppress(ReleaseFilesMissingError):
            found[path] = release_file("lmcache", release, path)
    return found


@cache
def schema_of(release: str) -> Schema:
    """The schema of a release."""
    return read_schema(files_of(release).get, release)


def code_of(release: str) -> tuple[bytes, ...]:
    """All of a release that decides what becomes of a configuration."""
    found = files_of(release)
    return (found[CONFIG], found.get(BASE, b""), *(repr(one).encode() for one in _reads(found)))


def executed(release: str, cases: Sequence[Mapping[str, Any]], folder: Path) -> list[Any]:
    """What the release's own code makes of each case.

    Args:
        release: of LMCache.
        cases: ``text`` of the file (None for none), ``environ``, ``overrides``, and ``names``
            of the keys to tell.
        folder: for the release's files.
    """
    code = folder / "code"
    code.mkdir(exist_ok=True)
    found = files_of(release)
    for path in (CONFIG, BASE):
        if path in found:
            (code / Path(path).name).write_bytes(found[path])
    updates, takes, validates = _reads(found)
    told = [
        {
            "text": case["text"],
            "environ": case.get("environ", {}),
            "overrides": case.get("overrides", {}) if takes else {},
            "names": case["names"],
            "validates": validates,
        }
        for case in cases
    ]
    child = _child()
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({"folder": str(code), "updates": updates, "cases": told}) + "\n")
    child.stdin.flush()
    line = child.stdout.readline()
    assert line, "the child ended; what it said stands on stderr"
    answer: list[Any] = json.loads(line)
    return answer


def _reads(found: Mapping[str, bytes]) -> tuple[bool, bool, bool]:
    """Whether the environment counts beside a file, and whether vLLM's extra config is read.

    And whether what is read without a file is checked by whoever reads it.
    """
    updates = b".update_config_from_env(" in found[LOADER]
    takes = any(SETTER in found.get(path, b"") for path in ADAPTERS)
    return updates, takes, b".validate()" in found[LOADER]


@cache
def _child() -> subprocess.Popen[str]:
    """One interpreter for all releases, each loaded anew; it ends with this process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(Path(folder.name, "lmcache.yaml"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")},
    )
