"""A smoke's model, as far as it is known before an engine is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.smoke_model import ROPES
from kvpatch.smoke_own import CLASSES, folder_of, see_to, see_to_kind
from smokes import make_model

LLAMA = ("LlamaForCausalLM",)


def failed(code: str, ends: ExitCode, caught: pytest.ExceptionInfo[KvpatchError]) -> str:
    assert (caught.value.code, caught.value.exit_code) == (code, ends)
    assert caught.value.hint
    return caught.value.message


def kept(hub: Path, name: str, commit: str = "c0ffee") -> Path:
    """A model as the hub's own library keeps it: a snapshot of links, and a name for it."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    whole = make_model(folder / "blobs")
    (folder / "snapshots" / commit).mkdir(parents=True)
    for one in whole.iterdir():
        (folder / "snapshots" / commit / one.name).symlink_to(Path("../..", "blobs", one.name))
    return folder / "snapshots" / commit


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ],
)
def test_a_name_on_the_hub_is_what_was_fetched_of_it(
    tmp_path: Path, variable: str, below: str
) -> None:
    snapshot = kept(tmp_path / below, "some/model")
    found = folder_of("some/model", {variable: str(tmp_path)})
    assert found == snapshot
    see_to(found, LLAMA)


def test_a_model_that_leaves_values_to_transformers_is_refused_by_its_class_first(
    tmp_path: Path,
) -> None:
    for architecture, code, ends in (
        ("Gemma3ForConditionalGeneration", "unsupported-model", ExitCode.REFUSED),
        ("LlamaForCausalLM", "model-left-out", ExitCode.USAGE),
    ):
        config = {"architectures": [architecture], "model_type": "m", "num_hidden_layers": 2}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(KvpatchError) as caught:
            see_to(tmp_path, LLAMA)
        failed(code, ends, caught)


def test_what_was_never_fetched_is_not_fetched_now(tmp_path: Path) -> None:
    for name in ("some/model", "gpt2"):
        with pytest.raises(KvpatchError) as caught:
            folder_of(name, {"HF_HUB_CACHE": str(tmp_path)})
        assert name in failed("no-model", ExitCode.ENVIRONMENT, caught)
        assert f"hf download {name}" in caught.value.hint


@pytest.mark.parametrize("named", ["/no/model", "./model", "~/no-such-model", "a/b/c"])
def test_a_path_is_not_taken_for_a_name(tmp_path: Path, named: str) -> None:
    with pytest.raises(KvpatchError, match="there is no model folder /") as caught:
        folder_of(named, {"HF_HUB_CACHE": str(tmp_path)})
    failed("no-model", ExitCode.ENVIRONMENT, caught)


def test_a_folder_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept(tmp_path / "hub", "some/model")
    make_model(tmp_path / "some" / "model")
    assert folder_of("some/model", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == (
        tmp_path / "some" / "model"
    )


def test_a_sound_model_is_taken(tmp_path: Path) -> None:
    see_to(make_model(tmp_path / "mine"), LLAMA)
    # Where LMCache's table of models can't be read, the engine says it.
    see_to(make_model(tmp_path / "other", architectures=["OtherForCausalLM"]), ())


@pytest.mark.parametrize("rope", [one for one in ROPES.values() if one])
def test_so_is_one_whose_rope_the_smoke_is_to_prove(tmp_path: Path, rope: object) -> None:
    see_to(make_model(tmp_path / "mine", rope_scaling=rope), LLAMA)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "does not blend DeepseekV3ForCausalLM"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "MLA, which LMCache does not blend"),
        ({"sliding_window": 64}, "2 layers with a window of 64 tokens"),
    ],
)
def test_a_model_that_is_not_blended_is_refused_as_doctor_does(
    tmp_path: Path, config: dict[str, object], told: str
) -> None:
    with pytest.raises(KvpatchError, match=told) as caught:
        see_to(make_model(tmp_path / "mine", **config), LLAMA)
    failed("unsupported-model", ExitCode.REFUSED, caught)


def test_that_goes_before_what_the_folder_lacks(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "mine", architectures=["DeepseekV3ForCausalLM"])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(KvpatchError) as caught:
        see_to(folder, LLAMA)
    failed("unsupported-model", ExitCode.REFUSED, caught)


@pytest.mark.parametrize(
    ("file", "code"), [("tokenizer.json", "no-tokenizer"), ("model.safetensors", "no-weights")]
)
def test_a_folder_without_tokenizer_or_weights_is_told(
    tmp_path: Path, file: str, code: str
) -> None:
    folder = make_model(tmp_path / "mine")
    (folder / file).unlink()
    # A link that leads nowhere is what a cache that was cleaned leaves.
    (folder / file).symlink_to("../gone")
    with pytest.raises(KvpatchError) as caught:
        see_to(folder, LLAMA)
    assert str(folder) in failed(code, ExitCode.ENVIRONMENT, caught)


def test_what_is_no_configuration_is_usage(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "mine")
    (folder / "config.json").write_text("[]")
    with pytest.raises(KvpatchError) as caught:
        see_to(folder, LLAMA)
    failed("bad-model", ExitCode.USAGE, caught)


def test_a_tiny_model_is_of_a_kind_that_is_blended() -> None:
    for arch, kind in CLASSES.items():
        see_to_kind(arch, ())
        see_to_kind(arch, [kind])
    with pytest.raises(KvpatchError) as caught:
        see_to_kind("qwen2", [CLASSES["llama"], CLASSES["qwen3"]])
    assert "Qwen2ForCausalLM" in failed("unsupported-model", ExitCode.REFUSED, caught)
    assert caught.value.hint == "take --arch llama or qwen3"
