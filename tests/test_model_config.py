"""Models' configurations in the forms that they come in."""

from __future__ import annotations

import json
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
    with pytest.raises(LeftOutError, match="leaves out num_attention_heads, which") as caught:
        read_model(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("model-left-out", ExitCode.USAGE)
    assert caught.value.architecture == "Gemma3"


def test_no_model_there_is_an_error_of_the_environment(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(KvpatchError, match="can't be read") as caught:
            read_model(path)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
