from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kvpatch import smoke_settings as wanted
from kvpatch.model_config import Model, read_model
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.smoke_measure import SAME
from smokes import make_model


def _all(_name: str) -> bool:
    return True


def test_the_basic_configuration_blends() -> None:
    found = wanted.settings(wanted.basic(_all, gds_path=None))
    assert (found.ratio, found.separator, found.gds) == (0.15, " # # ", False)
    assert found.values["blend_check_layers"] == [1]


def test_an_older_lmcache_gets_its_own_keys_and_no_others() -> None:
    known = {"chunk_size", "enable_blending", "use_layerwise", "blend_recompute_ratio"}
    values = wanted.basic(known.__contains__, gds_path=None)
    assert set(values) == known
    assert values["blend_recompute_ratio"] == 0.15


def test_with_gds_nothing_is_kept_in_the_memory_of_the_host(tmp_path: Path) -> None:
    values = wanted.basic(_all, gds_path=tmp_path)
    assert values["local_cpu"] is False
    assert values["retrieve_locations"] == ["GdsBackend"]
    assert wanted.settings(values).gds


def test_of_the_memory_that_a_host_has_for_serving_the_tiny_model_takes_little() -> None:
    values = {"max_local_cpu_size": 200.0, "gds_buffer_size": 100, "cufile_buffer_size": 4096}
    small = wanted.modest({**values, "chunk_size": 512, "gds_path": "/mnt"})
    basic = wanted.basic(_all, gds_path=None)
    assert small["max_local_cpu_size"] == basic["max_local_cpu_size"]
    assert small["gds_buffer_size"] == 100
    assert small["cufile_buffer_size"] < 4096
    assert (small["chunk_size"], small["gds_path"]) == (512, "/mnt")


def test_prompts_are_longer_than_a_chunk_and_the_shortest_blend() -> None:
    values = {**wanted.basic(_all, gds_path=None), "chunk_size": 256, "blend_min_tokens": 1000}
    assert wanted.settings(values).least > 1000


@pytest.mark.parametrize("name", ["enable_blending", "use_layerwise"])
def test_a_configuration_that_does_not_blend_is_refused(name: str) -> None:
    values = {**wanted.basic(_all, gds_path=None), name: "yes"}
    with pytest.raises(KvpatchError) as caught:
        wanted.settings(values)
    assert (caught.value.code, caught.value.exit_code) == ("no-blending", ExitCode.USAGE)
    assert "'yes'" in caught.value.message


@pytest.mark.parametrize("content", [b"- a\n- b\n", b"a: [", b"\xff\xfe\x00", b""])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lmcache.yaml"
    path.write_bytes(content)
    with pytest.raises(KvpatchError) as caught:
        wanted.read_config(path)
    assert (caught.value.code, caught.value.exit_code) == ("bad-config", ExitCode.USAGE)
    assert "\n" not in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none.yaml", "unreadable"), (tmp_path, "no-file")):
        with pytest.raises(KvpatchError) as caught:
            wanted.read_config(path)
        assert (caught.value.code, caught.value.exit_code) == (code, ExitCode.ENVIRONMENT)
        assert "Errno" not in caught.value.message


def _engine(connector: dict[str, Any] | None = None, room: wanted.Room = wanted.TINY) -> Any:
    return wanted.engine("m", room=room, dtype="float32", eager=True, connector=connector)


def test_starts_differ_by_their_connector_alone() -> None:
    with_it, without = _engine({"a": 1}), _engine()
    assert with_it.pop("kv_transfer_config") == {"a": 1}
    assert with_it == without
    assert without["dtype"] == "float32"


def _model(tmp_path: Path, **change: Any) -> Model:
    return read_model(make_model(tmp_path / "mine", **change))


def test_a_users_model_has_room_for_what_is_sent_and_leaves_the_rest(tmp_path: Path) -> None:
    # As of a model of 8B: 32 layers, 8 heads of 128 values in 2 bytes, keys and values.
    model = _model(
        tmp_path,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        hidden_size=4096,
        max_position_embeddings=131072,
    )
    asked = wanted.settings(wanted.basic(_all, gds_path=None))
    found = wanted.room(asked, model)
    assert found == wanted.Room(2048, 32 * 8 * 128 * 2 * 2 * 4 * 2048)
    arguments = _engine(room=found)
    assert arguments["max_model_len"] == 2048
    assert arguments["kv_cache_memory_bytes"] == 2**30
    # A server may use most of the memory.
    assert arguments["gpu_memory_utilization"] < 0.05


def test_that_room_follows_what_is_asked_and_no_further_than_the_model(tmp_path: Path) -> None:
    model = _model(tmp_path, max_position_embeddings=16384)
    values = {**wanted.basic(_all, gds_path=None), "blend_min_tokens": 2000}
    asked = wanted.settings(values)
    assert asked.least < wanted.room(asked, model).longest < 16384
    far = wanted.settings({**values, "blend_min_tokens": 9000})
    assert wanted.room(far, model).longest == 16384
    marked = wanted.settings({**values, "blend_special_str": "#" * 100})
    assert wanted.room(marked, model).longest >= wanted.room(asked, model).longest + 400


def test_every_prompt_that_is_blended_was_asked_without_cache_too() -> None:
    cold = {one["prompt"] for one in wanted.reference_steps() if "jitter" not in one}
    steps = wanted.store_steps() + wanted.blend_steps(0.15, (0.0,)) + wanted.layerwise_steps()
    steps += wanted.together_steps(wanted.settings(wanted.basic(_all, gds_path=None)))
    assert {SAME.get(one["prompt"], one["prompt"]) for one in steps} <= cold


def test_only_what_is_to_be_stored_is_stored() -> None:
    steps = wanted.blend_steps(0.15, wanted.SWEEP)
    assert not any(step.get("store") for step in steps)


def test_the_sweep_holds_the_configured_ratio_and_one() -> None:
    asked = {step["ratio"] for step in wanted.blend_steps(0.2, (0.5,)) if step.get("sweep")}
    assert asked == {0.2, 0.5, 1.0}


def test_separators_are_looked_at_where_nothing_fills_them_in_and_no_time_is_taken() -> None:
    steps = wanted.blend_steps(0.2, (0.0, 0.2))
    assert all(step["compare"] == step["fill"] for step in steps if step.get("sweep"))
    [apart] = [step for step in steps if step.get("compare") and not step["fill"]]
    assert apart["ratio"] == 0.2
    assert not apart.get("sweep")


def test_a_prompt_is_sent_again_at_ratio_1_too_and_compared() -> None:
    def again(ratio: float) -> list[float]:
        steps = [one for one in wanted.blend_steps(ratio, ()) if one["prompt"] == "twice"]
        assert all(one["compare"] and one["fill"] for one in steps)
        return [one["ratio"] for one in steps]

    assert again(0.2) == [0.2, 1.0]
    assert again(1.0) == [1.0]
