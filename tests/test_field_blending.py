"""Faults that people met when they blended, each with what is right for it, on real releases."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from fake_site import install
from kvpatch.model_checks import SINCE
from kvpatch.outcome import Outcome
from kvpatch.pair_checks import models_taken
from kvpatch.smoke_bench import Engine
from kvpatch.smoke_checks import judge
from kvpatch.smoke_measure import failure
from kvpatch.smoke_prompts import build
from lmcache_config import files_of
from lmcache_files import stock_files
from packaging.version import Version
from planning import WORKER, outcomes, planned, written
from releases import lmcache_releases, release_file, vllm_releases
from smokes import blended, measured, start
from test_smoke_bench import WRITE, _bench
from worker_stand_in import (
    ENGINE_NAME_HOME,
    NESTED_DEEP,
    PLAIN,
    TRACKER_HOME,
    WRAPPED,
    CUDAGraphWrapper,
    Kind,
    LMCache,
    Process,
)

pytestmark = pytest.mark.releases

VLLM = [str(release) for release in vllm_releases()]
OLD, NEW = VLLM[0], VLLM[-1]
MODELS = "lmcache/v1/compute/models/utils.py"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def real_tracker(release: str) -> LMCache:
    """LMCache's own tracker and engine name, of that release."""
    source = bytes(release_file("lmcache", release, TRACKER_HOME.replace(".", "/") + ".py"))
    named = release_file("lmcache", release, ENGINE_NAME_HOME.replace(".", "/") + ".py")
    name = re.search(rb'^ENGINE_NAME = "[^"]+"$', bytes(named), re.MULTILINE)
    assert name is not None
    return LMCache(sources={TRACKER_HOME: source, ENGINE_NAME_HOME: name[0]})


@pytest.mark.parametrize("lmcache", ["0.3.9", "0.5.6"])
@pytest.mark.parametrize("release", [OLD, "0.11.0", "0.17.1", NEW])
@pytest.mark.parametrize("kind", [WRAPPED, NESTED_DEEP], ids=lambda kind: kind.name)
def test_13_the_bare_model_is_registered_and_not_its_graph_wrapper(
    kind: Kind, release: str, lmcache: str
) -> None:
    plan = planned(bytes(release_file("vllm", release, WORKER)), release)
    assert outcomes(plan)["KV001"] is Outcome.PENDING
    run = Process(written(plan), PLAIN.config, kind, real_tracker(lmcache)).start()
    assert run.world.tracked == {"vllm-instance": run.model}
    (model,) = run.world.tracked.values()
    assert type(model).__name__ == "LlamaForCausalLM"
    # LMCache goes by that name; the wrapper's is what it refuses.
    taken = models_taken(bytes(release_file("lmcache", lmcache, MODELS)))
    assert type(model).__name__ in taken
    assert CUDAGraphWrapper.__name__ not in taken


def site_of(folder: Path, vllm: str, lmcache: str) -> Path:
    """A site folder with the real files of both releases that kvpatch reads or edits."""
    site = folder / "env" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    worker = bytes(release_file("vllm", vllm, WORKER)).decode()
    install(site, "vllm", vllm, {"vllm/__init__.py": "", WORKER: worker})
    found = {**files_of(lmcache), **stock_files(lmcache)}
    found[MODELS] = bytes(release_file("lmcache", lmcache, MODELS))
    texts = {path: content.decode() for path, content in found.items()}
    install(site, "lmcache", lmcache, {"lmcache/__init__.py": "", **texts})
    return site


def model(folder: Path, **more: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**CONFIG, **more}))
    return file


def rows(site: Path, *more: object) -> dict[str, dict[str, str]]:
    ended = kvpatch("doctor", "--site", site, "--json", *more)
    return {check["name"]: check for check in ended.data["checks"]}


def test_14_doctor_says_which_models_the_installed_lmcache_takes(tmp_path: Path) -> None:
    site = site_of(tmp_path, "0.32.0", "0.5.6")
    mistral = rows(site, "--model", model(tmp_path, architectures=["MistralForCausalLM"]))["model"]
    assert mistral["state"] == "fail"
    assert "MistralForCausalLM" in mistral["reason"]
    for name in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        assert name in mistral["todo"]
        assert (
            rows(site, "--model", model(tmp_path, architectures=[name]))["model"]["state"] == "ok"
        )


@pytest.mark.parametrize(
    "release",
    [one.version for one in lmcache_releases() if not one.pre and ".dev" not in one.version],
)
def test_14_the_models_are_those_of_each_release(release: str) -> None:
    taken = models_taken(bytes(release_file("lmcache", release, MODELS)))
    version = Version(release)
    wanted = ["LlamaForCausalLM"]
    wanted += ["Qwen3ForCausalLM"] if version >= Version("0.3.9") else []
    wanted += ["Qwen2ForCausalLM"] if version >= Version("0.3.10") else []
    assert sorted(taken) == sorted(wanted)
    assert {name for name, first in SINCE.items() if version >= Version(first)} == {*wanted[1:]}


@pytest.mark.parametrize(
    ("vllm", "told"),
    [("0.21.0", None), ("0.22.0", "Qwen3"), ("0.23.0", "Llama"), ("0.29.0", "all models")],
)
def test_15_doctor_warns_of_the_runner_from_the_release_on(
    tmp_path: Path, vllm: str, told: str | None
) -> None:
    row = rows(site_of(tmp_path, vllm, "0.5.6"))["model runner"]
    assert row["state"] == ("ok" if told is None else "warn")
    if told is not None:
        assert told in row["reason"]
        assert "VLLM_USE_V2_MODEL_RUNNER=0" in row["todo"]


def test_15_an_engine_that_hangs_is_told_as_a_hang_within_the_limit(tmp_path: Path) -> None:
    body = WRITE.replace("'done'", "'requests'") + "time.sleep(600)"
    begin = time.monotonic()
    hung = _bench(tmp_path, body, limit=1.0).start(Engine("blend", {}, None))
    assert time.monotonic() - begin < 30
    assert failure(hung).startswith("it hung at stage requests and was ended after ")
    short = start("blend", blended()[:2], code=hung.code, result={"stage": "requests"})
    answers = next(check for check in judge(measured(blend=short)) if check.name == "answers")
    assert answers.ok is False
    assert "hung" in answers.means


class Letters:
    """A tokenizer with one token a character, and a BOS."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *map(ord, text)]


def test_17_every_document_of_a_smoke_has_a_separator_after_it() -> None:
    mark = [ord(letter) for letter in " # # "]
    for name, prompt in build(Letters(), " # # ", 64, 1).items():
        tokens = prompt["tokens"]
        if name in ("one-token", "filler"):
            continue
        last = max(at for at in range(len(tokens)) if tokens[at : at + len(mark)] == mark)
        question = tokens[last + len(mark) :]
        documents = tokens[:last]
        assert question, name
        # What is asked is never part of the last document.
        assert documents[-len(question) :] != question, name


@pytest.mark.parametrize("profile", ["blend", "gds-blend"])
def test_17_a_profile_says_where_separators_stand(profile: str) -> None:
    made = kvpatch("profile", profile, "--lmcache", "0.5.6", "--vllm", "0.32.0").out
    said = " ".join(line.removeprefix("#").strip() for line in made.splitlines())
    assert "Stands before each document, the first one too, and before the question." in said


def test_19_scaled_rope_is_named_until_its_patch_is_in_place(tmp_path: Path) -> None:
    site = site_of(tmp_path, "0.32.0", "0.5.6")
    llama = model(tmp_path, rope_scaling={"rope_type": "llama3", "factor": 8.0})
    before = rows(site, "--model", llama)["rope"]
    assert (before["state"], before["todo"]) == ("fail", "run `kvpatch apply`")
    assert "llama3" in before["reason"]
    assert rows(site, "--model", model(tmp_path))["rope"]["state"] == "ok"
    applied = kvpatch("apply", "--site", site, "--json")
    assert applied.code == 0, applied.out
    llama = model(tmp_path, rope_scaling={"rope_type": "llama3", "factor": 8.0})
    assert rows(site, "--model", llama)["rope"]["state"] == "ok"


def test_19_smokes_oracle_lays_wrong_keys_of_scaled_rope_on_the_scaling() -> None:
    def off(facts: dict[str, Any]) -> float:
        return 0.5 if facts["prompt"].startswith("reordered-") and facts.get("ratio") == 1.0 else 0

    oracle = next(check for check in judge(measured(off)) if check.name == "oracle")
    assert oracle.ok is False
