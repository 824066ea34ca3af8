from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kvpatch import trial_engine
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.trial_engine import Bench, engine_environment, reasons

CHILD = """
import json, os, sys
task, folder = sys.argv[1], sys.argv[2]
if task == "engine":
    name = sys.argv[3]
    fact = {"name": name, "model": None}
    open(os.path.join(folder, "facts", name + ".json"), "w").write(json.dumps(fact))
    if name == "Good":
        open(os.path.join(folder, "engine.json"), "w").write(json.dumps({"tokens": [8]}))
    else:
        print("(Worker pid=1) ERROR [file.py:1] ValueError: no model")
        sys.exit(1)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose child is a stand-in for the engine."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "trial_child.py").write_text(CHILD)
    (sources / "trial_connectors.py").touch()
    monkeypatch.setattr(trial_engine, "__file__", str(sources / "trial_engine.py"))
    folder = tmp_path / "work"
    folder.mkdir()
    return Bench(folder, Path(sys.executable))


def test_a_start_brings_back_result_and_facts(bench: Bench) -> None:
    bench.build_model(lambda _: None)
    run = bench.start("Good", lambda _: None)
    assert run.result == {"tokens": [8]}
    assert run.facts == {"Good": {"name": "Good", "model": None}}


def test_nothing_of_one_start_is_taken_for_the_next_ones(bench: Bench) -> None:
    bench.build_model(lambda _: None)
    bench.start("Good", lambda _: None)
    run = bench.start("Bad", lambda _: None)
    assert run.result is None
    assert run.ended.code == 1
    assert list(run.facts) == ["Bad"]


def test_a_model_that_cannot_be_built_is_exit_4_with_the_reason(bench: Bench) -> None:
    child = Path(trial_engine.__file__).with_name("trial_child.py")
    child.write_text("raise ImportError('no torch here')")
    with pytest.raises(KvpatchError, match="ImportError: no torch here") as caught:
        bench.build_model(lambda _: None)
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


def test_the_engine_runs_with_vllms_defaults_and_writes_only_into_the_folder() -> None:
    given = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "LMCACHE_CONFIG_FILE": "/mine.yaml",
        "PYTHONPATH": "/mine",
    }
    made = engine_environment(given, Path("/work"))
    assert made["PATH"] == "/bin"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in made
    assert "LMCACHE_CONFIG_FILE" not in made
    assert made["PYTHONPATH"] == "/work/code"
    assert {made[name] for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")} == {"/work"}
    assert made["HF_HUB_OFFLINE"] == "1"
    json.dumps(made)


def test_the_reasons_are_the_errors_without_prefix_and_repetition() -> None:
    output = (
        "(Worker pid=1) ERROR 01-01 [a.py:1] Traceback (most recent call last):\n"
        "(Worker pid=1) ERROR 01-01 [a.py:1] ValueError: vllm model for vllm-instance not found.\n"
        "(EngineCore pid=2) ERROR 01-01 [b.py:1] ValueError: vllm model for vllm-instance not "
        "found.\n"
        "RuntimeError: Engine core initialization failed.\n"
    )
    assert reasons(output) == [
        "ValueError: vllm model for vllm-instance not found.",
        "RuntimeError: Engine core initialization failed.",
    ]
