"""LMCache's own configuration code of any release, executed with stand-ins for what it imports.

The stand-ins are torch-free modules for logging and the old configuration; everything that reads
a file or the environment is the release's own code, run in a child process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvpatch.schema import Schema
from kvpatch.schema_source import ADAPTERS, BASE, CONFIG, FILES, LOADER, read_schema
from releases import ReleaseFilesMissingError, release_file

SETTER = b"validate_and_set_config_value"
_CHILD = """
import json, logging, os, sys, types
folder = sys.argv[1]
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
def init_logger(name):
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [Keep(logging.WARNING)], False
    return logger
names = ("lmcache", "lmcache.v1", "lmcache.logging", "lmcache.config", "requests")
for name in names:
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
setter = getattr(base, "validate_and_set_config_value", None) or getattr(
    module, "_validate_and_set_config_value", None)
results = []
for case in json.load(sys.stdin):
    complaints.clear()
    for name in [name for name in os.environ if name.startswith("LMCACHE_")]:
        del os.environ[name]
    os.environ.update(case["environ"])
    try:
        if case["file"] is None:
            config = module.LMCacheEngineConfig.from_env()
        else:
            config = module.LMCacheEngineConfig.from_file(case["file"])
            if case["updates"]:
                config.update_config_from_env()
        for key, value in case["overrides"].items():
            setter(config, key, value)
        values = {name: getattr(config, name) for name in case["names"]}
        results.append({"values": values, "said": list(complaints), "stop": None})
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
        results.append({"values": {}, "said": list(complaints), "stop": told})
print(json.dumps(results))
"""


def files_of(release: str) -> Mapping[str, bytes]:
    """The files that a schema is read from, those that the release has."""
    found: dict[str, bytes] = {}
    for path in FILES:
        with contextlib.suppress(ReleaseFilesMissingError):
            found[path] = release_file("lmcache", release, path)
    return found


def schema_of(release: str) -> Schema:
    """The schema of a release."""
    return read_schema(files_of(release).get, release)


def executed(release: str, cases: Sequence[Mapping[str, Any]], folder: Path) -> list[Any]:
    """What the release's own code makes of each case.

    Args:
        release: of LMCache.
        cases: ``text`` of the file (None for none), ``environ``, ``overrides``, and ``names``
            of the keys to tell.
        folder: for the release's files and the configurations.
    """
    code = folder / "code"
    code.mkdir()
    found = files_of(release)
    for path in (CONFIG, BASE):
        if path in found:
            (code / Path(path).name).write_bytes(found[path])
    updates = b".update_config_from_env(" in found[LOADER]
    takes = any(SETTER in found.get(path, b"") for path in ADAPTERS)
    told = []
    for number, case in enumerate(cases):
        file = folder / f"{number}.yaml" if case["text"] is not None else None
        if file is not None:
            file.write_text(case["text"], "utf-8")
        told.append(
            {
                "file": None if file is None else str(file),
                "environ": case.get("environ", {}),
                "updates": updates,
                "overrides": case.get("overrides", {}) if takes else {},
                "names": case["names"],
            }
        )
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, str(code)],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")},
    )
    assert ended.returncode == 0, ended.stderr
    answer: list[Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer
