from __future__ import annotations

import json
import os
import sys
import time
from array import array
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kvpatch import smoke_bench
from kvpatch.smoke_bench import CODE, Bench, Engine

ANSWER = {"prompt": "store", "logprobs": b64encode(array("f", [-1.0, -2.0]).tobytes()).decode()}
HEAD = "import json, os, sys, time\norder = json.load(open(sys.argv[1]))\n"
WRITE = (
    "out = order['out']\n"
    "open(out, 'w').write(json.dumps({'stage': 'done', 'stages': {'requests': 1}}))\n"
    f"whole = json.dumps({ANSWER!r})\n"
    "open(out[:-5] + '.answers', 'w').write(whole + '\\n' + whole[:20])\n"
)


def _bench(folder: Path, body: str, limit: float = 30.0, **change: Any) -> Bench:
    bench = Bench(
        folder=folder,
        python=Path(sys.executable),
        deadline=time.monotonic() + limit,
        harness=True,
        own_model=False,
        say=lambda _: None,
        **change,
    )
    bench.prepare()
    (folder / "code" / CODE[0]).write_text(HEAD + body)
    return bench


def test_the_childrens_code_is_copied_alone(tmp_path: Path) -> None:
    Bench(tmp_path, Path(sys.executable), 0.0, True, False, print).prepare()
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == sorted(CODE)


def test_what_a_child_wrote_is_read_but_for_a_line_it_did_not_finish(tmp_path: Path) -> None:
    found = _bench(tmp_path, WRITE).start(Engine("blend", {"x": 1}, None))
    assert (found.code, found.up, found.done) == (0, True, True)
    assert [(a.prompt, list(a.logprobs)) for a in found.answers] == [("store", [-1.0, -2.0])]
    assert json.loads((tmp_path / "blend.order").read_text())["x"] == 1


def test_a_child_that_hangs_is_ended_and_known_as_hanging(tmp_path: Path) -> None:
    body = WRITE.replace("'done'", "'requests'") + "time.sleep(600)"
    begin = time.monotonic()
    found = _bench(tmp_path, body, limit=1.0).start(Engine("blend", {}, None))
    assert found.code is None
    assert time.monotonic() - begin < 30


def test_a_child_that_is_killed_is_known_as_killed(tmp_path: Path) -> None:
    assert _bench(tmp_path, "os.kill(os.getpid(), 9)").start(Engine("blend", {}, None)).code == -9


def test_a_child_that_writes_nothing_has_no_result(tmp_path: Path) -> None:
    found = _bench(tmp_path, "print('no')").start(Engine("blend", {}, None))
    assert (dict(found.result), found.answers, found.output) == ({}, (), "no\n")


def test_no_setting_of_the_caller_reaches_the_engine(tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "LMCACHE_CHUNK_SIZE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "PYTHONPATH": "/elsewhere",
        "HF_HOME": "/hub",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    found = _bench(tmp_path, "", environ=environ).variables(tmp_path / "l.yaml")
    assert "LMCACHE_CHUNK_SIZE" not in found
    assert "VLLM_USE_V2_MODEL_RUNNER" not in found
    assert found["PYTHONPATH"] == str(tmp_path / "code")
    assert found["LMCACHE_CONFIG_FILE"] == str(tmp_path / "l.yaml")
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert (found["HOME"], "HF_HOME" in found) == (str(tmp_path), False)


def test_a_users_model_is_found_where_the_user_has_it(tmp_path: Path) -> None:
    environ = {"HF_HOME": "/hub", "HOME": "/me", "HF_HUB_OFFLINE": "0"}
    bench = Bench(tmp_path, Path(sys.executable), 0.0, False, True, print, environ)
    found = bench.variables(None)
    assert (found["HF_HOME"], found["HOME"]) == ("/hub", "/me")
    assert (found["HF_HUB_OFFLINE"], found["TRANSFORMERS_OFFLINE"]) == ("1", "1")
    assert "TORCHDYNAMO_DISABLE" not in found


@pytest.mark.parametrize("name", CODE)
def test_every_child_script_stands_alone_and_is_python_3_9(name: str) -> None:
    import ast

    source = Path(smoke_bench.__file__).with_name(name).read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    imported = [
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or "kvpatch" in (node.module or ""))
    ]
    assert imported == []


def test_engines_that_run_at_once_write_and_are_read_apart(tmp_path: Path) -> None:
    # Each waits until the other one has begun.
    meet = (
        "names = {'blend': 'layerwise', 'layerwise': 'blend'}\n"
        "open(order['role'], 'w').close()\n"
        "while not os.path.exists(names[order['role']]): time.sleep(0.01)\n"
    )
    told: list[str] = []
    bench = replace(_bench(tmp_path, WRITE + meet + "print(order['role'])"), say=told.append)
    found = bench.start_together([Engine("blend", {}), Engine("layerwise", {})])
    assert [(one.role, one.done, one.output) for one in found] == [
        ("blend", True, "blend\n"),
        ("layerwise", True, "layerwise\n"),
    ]
    assert told == ["starting engines: blend and layerwise"]
    assert (tmp_path / "layerwise.log").read_text() == "layerwise\n"
