"""What a configuration leaves out, as a transformers that stands in fills it in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpatch import config_probe


def test_the_whole_configuration_is_asked_for_without_code_of_the_model_or_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(file: str, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(to_dict=lambda: {"file": file, **options})

    auto = SimpleNamespace(from_pretrained=load)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoConfig=auto))
    wanted = {"file": "/m/config.json", "local_files_only": True, "trust_remote_code": False}
    assert config_probe.whole("/m/config.json") == wanted


def test_what_cant_be_loaded_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", config_probe.__file__, str(tmp_path / "config.json")]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1])["problem"]
