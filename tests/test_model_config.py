"""Models' configurations in the forms that they come in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvpatch.model_config import LeftOutError, parse_model, read_model
from kvpatch.outcome import ExitCode, KvpatchError

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "max_position_embeddings": 4096,
}


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PLAIN))
    assert read_model(folder) == read_model(folder / "config.json")
    assert read_model(folder).name == "Tiny-Llama"


@pytest.mark.parametrize(
    ("more", "rope"),
    [
        ({}, ""),
        ({"rope_scaling": None}, ""),
        ({"rope_scaling": {"rope_type": "llama3"}}, "llama3"),
        ({"rope_scaling": {"type": "yarn"}}, "yarn"),
        ({"rope_parameters": {"rope_type": "default"}}, ""),
    ],
)
def test_the_scaling_of_rope_is_read_in_old_and_new_forms(more: dict[str, Any], rope: str) -> None:
    assert parse_model({**PLAIN, **more}, "m").rope == rope


@pytest.mark.parametrize(
    ("more", "windowed"),
    [
        ({"sliding_window": 1024}, 2),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 1024, "use_sliding_window": False, "max_window_layers": 2}, 0),
        ({"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 1}, 1),
        ({"sliding_window": 512, "sliding_window_pattern": 2}, 1),
        # Both leave the pattern to transformers: every second and every sixth layer has none.
        ({"sliding_window": 512, "model_type": "gemma2"}, 1),
        ({"sliding_window": 512, "model_type": "gemma3_text", "num_hidden_layers": 13}, 11),
    ],
)
def test_windows_count_only_where_they_are_used(more: dict[str, Any], windowed: int) -> None:
    assert parse_model({**PLAIN, **more}, "m").windowed_layers == windowed


def test_the_text_part_of_a_model_that_sees_is_taken() -> None:
    outer = {"architectures": ["Llava"], "text_config": {**PLAIN, "dtype": "float16"}}
    found = parse_model(outer, "m")
    assert (found.architecture, found.layers, found.dtype) == ("Llava", 2, "float16")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"num_hidden_layers": "x"}',
        json.dumps({**PLAIN, "num_hidden_layers": -1}),
        json.dumps({**PLAIN, "text_config": [1]}),
        '{"num_hidden_layers": null}',
        "\x00\x01",
    ],
)
def test_what_is_no_configuration_is_a_usage_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(KvpatchError) as caught:
        read_model(file)
    assert (caught.value.code, caught.value.exit_code) == ("bad-model", ExitCode.USAGE)


def test_what_a_configuration_leaves_to_transformers_is_named_with_its_class(
    tmp_path: Path,
) -> None:
    # As Gemma-3's is: the text part has not even its number of heads.
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    whole = {"architectures": ["Gemma3"], "model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    named = "num_attention_heads, max_position_embeddings, num_key_value_heads, head_dim"
    with pytest.raises(LeftOutError, match=f"leaves out {named}, which") as caught:
        read_model(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("model-left-out", ExitCode.USAGE)
    assert caught.value.architecture == "Gemma3"


GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34},
}
FILLED = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}


def left_out(name: str, **more: Any) -> tuple[Any, ...]:
    longest = more.pop("longest", None)
    with pytest.raises(KeyError) as caught:
        parse_model({**GEMMA, name: {**GEMMA["text_config"], **more}}, "m", longest)
    return caught.value.args


def test_heads_that_no_other_key_tells_are_left_out_and_not_computed() -> None:
    # 8 KV heads of 320 values would be 2.5 times of what the model has.
    heads = {"num_attention_heads": 8, "max_position_embeddings": 131072}
    assert left_out("text_config", **heads) == ("num_key_value_heads", "head_dim")
    assert left_out("text_config", **heads, head_dim=256) == ("num_key_value_heads",)
    # No more is known of a class that was never heard of, once it leaves something out.
    odd = {"model_type": "odd", "num_attention_heads": None, "head_dim": 64}
    assert left_out("text_config", **heads | odd) == ("num_attention_heads", "num_key_value_heads")
    llava = {"model_type": "llava", "text_config": {**PLAIN, "model_type": "llama"}}
    assert (parse_model(llava, "m").kv_heads, parse_model(llava, "m").head_size) == (4, 64)


def test_the_length_that_is_asked_for_stands_in_for_one_that_is_left_out() -> None:
    short = {key: value for key, value in PLAIN.items() if key != "max_position_embeddings"}
    found = parse_model(short, "m", 32768)
    assert (found.longest, found.most) == (32768, 32768)
    assert parse_model(PLAIN, "m", 32768).longest == 4096
    with pytest.raises(KeyError, match="max_position_embeddings"):
        parse_model(short, "m")
    named = left_out("text_config", longest=4096)
    assert named == ("num_attention_heads", "num_key_value_heads", "head_dim")


def target(folder: Path, text: str) -> Path:
    """An environment whose transformers is that text."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "transformers.py").write_text(text)
    return folder / "bin" / "python"


def test_what_is_left_out_is_asked_of_the_targets_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    whole = {**GEMMA, "architectures": None, "text_config": {**FILLED, "num_hidden_layers": 26}}
    python = target(
        tmp_path / "env",
        "class AutoConfig:\n"
        "    def from_pretrained(*_, **__): return AutoConfig()\n"
        f"    def to_dict(self): return {whole}\n",
    )
    found = read_model(tmp_path, python=python)
    # What the file itself says counts.
    assert (found.architecture, found.layers) == ("Gemma3ForConditionalGeneration", 34)
    assert (found.kv_heads, found.head_size, found.longest) == (4, 256, 131072)


def test_a_transformers_that_cant_tell_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    with pytest.raises(LeftOutError) as caught:
        read_model(tmp_path, python=target(tmp_path / "env", "raise ImportError('no torch here')"))
    assert "can't be asked: no torch here" in caught.value.hint


def test_no_model_there_is_an_error_of_the_environment(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(KvpatchError, match="can't be read") as caught:
            read_model(path)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
