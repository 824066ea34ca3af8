"""What LMCache's own code makes of a text, run by an interpreter that has it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from kvpatch.misread import misread
from kvpatch.outcome import ExitCode, KvpatchError


def interpreter(folder: Path, config: str) -> Path:
    """A Python that has a package ``lmcache`` with this configuration module."""
    package = folder / "lmcache" / "v1"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(config)
    python = folder / "python"
    boot = f"import sys; sys.path.insert(0, {str(folder)!r}); exec(sys.argv.pop(1))"
    python.write_text(
        f"#!/bin/sh\n# called as: -I -c CODE FILE NAMES\nshift 2\n"
        f'exec \'{sys.executable}\' -I -c "{boot}" "$@"\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


CONFIG_CLASS = """
import logging
logger = logging.getLogger("lmcache.v1.config")
class LMCacheEngineConfig:
    chunk_size = None
    @classmethod
    def from_file(cls, path):
        config = cls()
        for line in open(path):
            name, value = line.strip().split(": ")
            if name == "unknown":
                logger.warning("Unknown configuration key: %s", name)
            elif name == "bad":
                raise ValueError("bad value")
            else:
                setattr(config, name, value if value.startswith("/") else int(value) // 256 * 256)
        return config
"""


def test_a_file_that_is_read_as_meant_leaves_nothing_to_say(tmp_path: Path) -> None:
    python = interpreter(tmp_path, CONFIG_CLASS)
    assert misread(python, "chunk_size: 256\ngds_path: /a\n") == ()


def test_warnings_and_other_values_are_told(tmp_path: Path) -> None:
    python = interpreter(tmp_path, CONFIG_CLASS)
    assert misread(python, "chunk_size: 300\nunknown: 3\n") == (
        "LMCache warns: Unknown configuration key: unknown",
        "LMCache reads chunk_size as 256, where 300 is meant",
        "LMCache reads unknown as None, where 3 is meant",
    )


def test_a_file_that_is_not_read_at_all_is_a_failure_with_the_reason(tmp_path: Path) -> None:
    python = interpreter(tmp_path, CONFIG_CLASS)
    with pytest.raises(KvpatchError, match="ValueError: bad value") as caught:
        misread(python, "bad: 1\n")
    assert (caught.value.code, caught.value.exit_code) == ("not-loaded", ExitCode.NO)


def test_lmcache_variables_of_the_caller_do_not_reach_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "512")
    config = CONFIG_CLASS.replace(
        "config = cls()", "import os; config = cls(); assert 'LMCACHE_CHUNK_SIZE' not in os.environ"
    )
    assert misread(interpreter(tmp_path, config), "chunk_size: 256\n") == ()
