"""The child script, by stand-ins of vLLM and transformers in the shapes it uses."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kvpatch import smoke_child
from kvpatch.smoke_bench import Bench
from kvpatch.smoke_witness import Witness
from targets import run_in_target


def _child(folder: Path, transformers: str) -> subprocess.Popen[bytes]:
    Bench(folder, Path(sys.executable), 0.0, True, False, print).prepare()
    (folder / "code" / "transformers.py").write_text(transformers)
    order = {"out": str(folder / "blend.json"), "engine": {"model": "m"}, "role": "blend"}
    (folder / "order").write_text(json.dumps(order))
    return subprocess.Popen(
        [sys.executable, "-B", folder / "code" / "smoke_child.py", folder / "order"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(folder / "code")},
        start_new_session=True,
    )


def test_what_went_wrong_is_written_down_with_how_far_it_came(tmp_path: Path) -> None:
    refusing = (
        "class AutoTokenizer:\n"
        "    @staticmethod\n"
        "    def from_pretrained(model):\n"
        "        raise OSError(f'no tokenizer in {model}')\n"
    )
    assert _child(tmp_path, refusing).wait(timeout=30) == 1
    found = json.loads((tmp_path / "blend.json").read_text())
    assert found["stage"] == "tokenizer"
    assert list(found["stages"]) == ["import", "tokenizer"]
    assert found["error"]["type"] == "OSError"
    assert found["error"]["text"] == "no tokenizer in m"
    assert found["error"]["where"] == "from_pretrained (transformers.py)"
    assert found["error"]["chain"][0]["places"][-1] == [
        str(tmp_path / "code" / "transformers.py"),
        4,
        "from_pretrained",
    ]


def test_an_error_is_placed_where_what_is_watched_was_and_not_in_what_watches() -> None:
    watching = Witness("memory", lambda *_: None, None, None)
    with pytest.raises(MemoryError) as raised:
        watching.at_request("twice")
    here = "test_an_error_is_placed_where_what_is_watched_was_and_not_in_what_watches"
    assert smoke_child.place_of(raised.value) == f"{here} (test_smoke_child.py)"
    assert raised.value.__traceback__ is not None
    alone = raised.value.with_traceback(raised.value.__traceback__.tb_next)
    assert smoke_child.place_of(alone) == "at_request (smoke_witness.py)"
    assert smoke_child.place_of(ValueError()) == ""


def test_what_an_error_was_raised_from_is_told_with_its_places() -> None:
    def fails() -> None:
        raise KeyError("inner")

    try:
        try:
            fails()
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        told = smoke_child.chain(error)
    assert [(link["type"], link["text"]) for link in told] == [
        ("RuntimeError", "outer"),
        ("KeyError", "'inner'"),
    ]
    assert told[1]["places"][-1][2] == "fails"


def test_a_child_does_not_outlive_the_smoke_that_started_it(tmp_path: Path) -> None:
    child = _child(tmp_path, "import time\ntime.sleep(600)\n")
    deadline = time.monotonic() + 30
    while not (tmp_path / "blend.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child.poll() is None
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=30) == -15


def _run(tmp_path: Path, **order: Any) -> smoke_child.Run:
    return smoke_child.Run({"out": str(tmp_path / "out.json"), **order})


def test_an_engine_is_started_with_what_its_release_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class EngineArgs:
        model: str
        kv_transfer_config: Any = None

    modules = {
        "vllm": {"LLM": lambda **given: given},
        "vllm.config": {"KVTransferConfig": lambda **given: ("transfer", given)},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
    }
    for name, names in modules.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    run = _run(tmp_path)
    wanted = {"model": "m", "max_logprobs": -1, "kv_transfer_config": {"kv_role": "kv_both"}}
    smoke_child.start(run, wanted)
    assert run.engine == {
        "model": "m",
        "kv_transfer_config": ("transfer", {"kv_role": "kv_both"}),
    }
    assert run.result["unknown_arguments"] == ["max_logprobs"]


def test_where_a_caches_size_can_not_be_given_its_share_of_the_memory_is_vllms_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["gpu_memory_utilization", "kv_cache_memory_bytes"]
    wanted = {"gpu_memory_utilization": 0.01, "kv_cache_memory_bytes": 1}
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": lambda **given: given},
        "vllm.config": {"KVTransferConfig": None},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {},
    }
    for name, inside in modules.items():
        module = ModuleType(name)
        vars(module).update(inside)
        monkeypatch.setitem(sys.modules, name, module)
    run = _run(tmp_path)
    for known, given in ((names, wanted), (names[:1], {})):
        arguments = dataclasses.make_dataclass("EngineArgs", known)
        vars(sys.modules["vllm.engine.arg_utils"])["EngineArgs"] = arguments
        smoke_child.start(run, wanted)
        assert run.engine == given


class Runner:
    """Stands in for a model runner."""

    def __init__(self) -> None:
        impl = type("FlashAttentionImpl", (), {})()
        layer = SimpleNamespace(self_attn=SimpleNamespace(attn=SimpleNamespace(impl=impl)))
        self.model = SimpleNamespace(model=SimpleNamespace(layers=[layer, layer]))


class Engine:
    """Stands in for ``vllm.LLM`` with one worker in its process."""

    def __init__(self) -> None:
        self.worker = SimpleNamespace(model_runner=Runner())
        executor = type("UniProcExecutor", (), {})()
        self.llm_engine = SimpleNamespace(
            engine_core=SimpleNamespace(engine_core=SimpleNamespace(model_executor=executor)),
            vllm_config=SimpleNamespace(
                compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name="NONE")),
                model_config=SimpleNamespace(dtype="torch.float32"),
                cache_config=SimpleNamespace(block_size=16),
            ),
        )

    def collective_rpc(self, ask: Any) -> list[Any]:
        return [ask(self.worker)]


def test_an_engine_is_named_by_the_classes_it_is_made_of() -> None:
    found = smoke_child.facts(Engine())
    assert found["runner"].endswith(".Runner")
    assert (found["attention"], found["executor"]) == ("FlashAttentionImpl", "UniProcExecutor")
    assert (found["graph_mode"], found["dtype"], found["layers"]) == ("NONE", "float32", 2)


def test_files_that_are_still_written_are_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(b"")

    def write() -> None:
        for _ in range(8):
            time.sleep(0.1)
            with path.open("ab") as stream:
                stream.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    smoke_child.settle(str(tmp_path))
    done = path.stat().st_size
    writer.join()
    assert done == path.stat().st_size == 8


def test_every_answer_is_a_line_and_the_result_is_never_half_written(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.stage("requests")
    for number in range(2):
        run.answer({"prompt": str(number)})
    lines = (tmp_path / "out.answers").read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == ["0", "1"]
    assert json.loads((tmp_path / "out.json").read_text())["stage"] == "requests"
    assert not (tmp_path / "out.part").exists()


def test_events_are_written_down_as_they_happen(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.result["events"] = events = smoke_child.Events(run.save)
    for event in ("registered", "connector:worker"):
        events.append(event)
        assert json.loads((tmp_path / "out.json").read_text())["events"] == list(events)
    assert events == ["registered", "connector:worker"]


SERVE = """
import base64, json, sys, tempfile, torch
from pathlib import Path
from types import ModuleType, SimpleNamespace as Names
import smoke_child
from smoke_witness import Witness

sys.modules["vllm"] = ModuleType("vllm")
sys.modules["vllm"].SamplingParams = lambda **given: given

class Engine:
    def generate(self, prompts, sampling, use_tqdm):
        assert (sampling["max_tokens"], sampling["logprobs"]) == (1, -1)
        self.sent = [one["prompt_token_ids"] for one in prompts]
        for one in self.sent:
            runner.execute_model(Names(num_scheduled_tokens={"a": len(one)}))
        first = {2: Names(logprob=-2.0), 0: Names(logprob=-0.5), 1: Names(logprob=-1.0)}
        answers = [Names(outputs=[Names(logprobs=[first], token_ids=[n])]) for n in range(3)]
        return answers[: len(prompts)]
    def collective_rpc(self, ask):
        return [ask(Names(model_runner=runner))]

class Runner:
    def execute_model(self, scheduled):
        pass

runner = Runner()
folder = Path(tempfile.mkdtemp())
run = smoke_child.Run({"out": str(folder / "out.json"), "gds": True, "gds_path": "/gds",
                       "engine": {"max_num_batched_tokens": 8}})
run.engine, run.witness = Engine(), Witness("", lambda *_: None, None, Names(blocks=None))
written = []
smoke_child.settle = written.append
run.witness.cache = Names(lookup=lambda tokens: len(tokens) * len(written))
smoke_child.serve(run, [5, 6], {"prompt": "store", "store": True})
entry = json.loads((folder / "out.answers").read_text())
numbers = torch.frombuffer(bytearray(base64.b64decode(entry["logprobs"])), dtype=torch.float32)
stored, filled = run.witness.storing, run.witness.fill_separators
[alone] = run.engine.sent
beside = []
for step in ({"prompt": "x", "spare": 3}, {"prompt": "x"}):
    smoke_child.serve(run, [5, 6], step, [7, 8])
    other = json.loads((folder / "out.answers").read_text().splitlines()[-1])
    beside.append([run.engine.sent, other["token"], other.get("parts"), run.witness.beside])
print(json.dumps([alone, entry["token"], numbers.tolist(), stored, filled,
                  entry["known"], written, beside]))
"""
JITTER = """
import json, torch
from types import SimpleNamespace as Names
import smoke_child

class Pair(torch.nn.Module):
    def forward(self, x):
        return x + 0, None

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv_proj, self.attn = Pair(), torch.nn.Identity()
    def forward(self, x):
        return self.attn(self.qkv_proj(x)[0])

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), torch.nn.Identity()

layer = Layer()
worker = Names(model_runner=Names(model=Names(model=Names(layers=[layer]))))
engine = Names(collective_rpc=lambda ask: [ask(worker)])
x = torch.ones(1000)
plain = layer.self_attn(x)
jitter = smoke_child.Jitter(engine, 1)
shaken = layer.self_attn(x)
jitter.remove()
eps = torch.finfo(x.dtype).eps
off = (shaken - plain).abs().max() / eps
print(json.dumps([float(off), bool((layer.self_attn(x) == plain).all()), len(jitter.hooks)]))
"""


@pytest.mark.stack
def test_an_answer_holds_the_whole_distribution_in_the_order_of_the_tokens() -> None:
    assert run_in_target(SERVE)[:5] == [[5, 6], 0, [-0.5, -1.0, -2.0], True, False]


@pytest.mark.stack
def test_what_is_known_of_a_stored_prompt_is_asked_once_gds_has_written_it() -> None:
    assert run_in_target(SERVE)[5:7] == [2, ["/gds"]]


@pytest.mark.stack
def test_a_prompt_is_sent_behind_one_that_leaves_it_part_of_a_step() -> None:
    filler = [7, 8, 7, 8, 7]
    assert run_in_target(SERVE)[7] == [
        [[filler, [5, 6]], 1, [[5], [2]], filler],
        [[[5, 6]], 0, None, []],
    ]


@pytest.mark.stack
def test_rounding_is_put_into_every_part_and_taken_out_again() -> None:
    most, as_before, hooks = run_in_target(JITTER)
    assert 1 <= most <= 4
    assert as_before
    assert hooks == 4
