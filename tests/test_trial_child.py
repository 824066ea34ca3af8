from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvpatch import trial_child

ORPHAN = """
import os, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
import trial_child
threading.Thread(target=trial_child.die_with_parent, daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def test_a_probe_is_loaded_by_its_module_path_and_told_where_to_write() -> None:
    assert trial_child.transfer_config("OtherProbe", "/facts") == {
        "kv_connector": "OtherProbe",
        "kv_role": "kv_both",
        "kv_connector_module_path": "trial_connectors",
        "kv_connector_extra_config": {"facts": "/facts"},
    }


def test_a_multi_connector_holds_both_probes() -> None:
    config = trial_child.transfer_config("MultiConnector", "/facts")
    assert "kv_connector_module_path" not in config
    members = config["kv_connector_extra_config"]["connectors"]
    assert [member["kv_connector"] for member in members] == ["OtherProbe", "LMCacheConnectorProbe"]


def test_the_probes_module_is_not_taken_for_lmcaches() -> None:
    assert trial_child.CONNECTORS_MODULE.split(".")[0] != "lmcache"


def test_a_result_is_written_whole(tmp_path: Path) -> None:
    trial_child.write_result(tmp_path, "engine", {"tokens": [8]})
    assert [path.name for path in tmp_path.iterdir()] == ["engine.json"]
    assert json.loads((tmp_path / "engine.json").read_text()) == {"tokens": [8]}


@pytest.mark.parametrize(
    ("argv", "name"), [(["model"], "model-built"), (["engine", "X"], "engine")]
)
def test_the_task_leaves_its_result_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str
) -> None:
    monkeypatch.setattr(trial_child, "die_with_parent", lambda: None)
    monkeypatch.setattr(trial_child, "build_model", lambda _: None)
    monkeypatch.setattr(trial_child, "run_engine", lambda _, connector: {"ran": connector})
    assert trial_child.main([argv[0], str(tmp_path), *argv[1:]]) == 0
    assert (tmp_path / f"{name}.json").exists()


def test_when_the_trial_is_killed_its_engine_goes_too() -> None:
    folder = str(Path(trial_child.__file__).parent)
    child = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    child.stdin.close()
    assert child.wait(60) != 0
    end = time.monotonic() + 60
    while not _gone(grandchild) and time.monotonic() < end:
        time.sleep(0.05)
    assert _gone(grandchild)
    child.stdout.close()


def test_it_needs_nothing_of_kvpatch_to_be_imported() -> None:
    folder = Path(trial_child.__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import trial_child"
    bare = {"PATH": os.defpath}
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], env=bare).returncode == 0
