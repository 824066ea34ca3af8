"""What LMCache's own configuration code, run by the target interpreter, makes of a text."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import yaml

from .bounded import run
from .interpreters import clean_environment
from .outcome import ExitCode, KvpatchError

LOAD_LIMIT_S = 180.0

_LOAD = """
import json, logging, sys
from lmcache.v1.config import LMCacheEngineConfig
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
for name in list(logging.root.manager.loggerDict):
    if name.startswith("lmcache"):
        logging.getLogger(name).addHandler(Keep(logging.WARNING))
config = LMCacheEngineConfig.from_file(sys.argv[1])
values = {name: getattr(config, name, None) for name in sys.argv[2:]}
print(json.dumps([complaints, values]))
"""


def misread(python: Path, text: str) -> tuple[str, ...]:
    """What LMCache's own code, run by that interpreter, reads otherwise than the text says.

    One sentence for each warning that it logs and each top-level key whose value differs; none
    where it reads all as meant.

    Raises:
        KvpatchError: ``not-loaded``, exit 1: it does not read the file at all.
    """
    meant = yaml.safe_load(text)
    environ = {
        name: value
        for name, value in clean_environment(os.environ).items()
        if not name.startswith("LMCACHE_")
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lmcache.yaml")
        file.write_text(text, "utf-8")
        argv = [python, "-I", "-c", _LOAD, file, *meant]
        ended = run(argv, limit=LOAD_LIMIT_S, env=environ, cwd=Path(folder))
    lines = ended.output.strip().splitlines() or [""]
    if ended.code != 0:
        raise KvpatchError(
            "not-loaded",
            f"LMCache does not read the configuration: {lines[-1].strip()}",
            "report this release of LMCache",
            ExitCode.NO,
        )
    complaints, values = json.loads(lines[-1])
    # A logger that passes its messages on has them kept twice.
    found = [f"LMCache warns: {complaint}" for complaint in dict.fromkeys(complaints)]
    found += [
        f"LMCache reads {name} as {values[name]!r}, where {value!r} is meant"
        for name, value in meant.items()
        if values[name] != value
    ]
    return tuple(found)
