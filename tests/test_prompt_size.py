from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvpatch.launch_script import parse_launch
from kvpatch.prompt_size import prompt_mib

# 128 KiB a token, as Llama-3.1-8B has it.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 32768,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "tokens", "share"),
    [
        ("", 32768, 1),
        ("--max-model-len 4096", 4096, 1),
        ("-tp 4 --max-model-len 2048", 2048, 4),
        ("--tensor-parallel-size 8 --max-model-len 2048", 2048, 8),
        ("--kv-cache-dtype fp8 --max-model-len 2048", 2048, 2),
    ],
)
def test_it_is_what_a_rank_holds_of_the_longest_prompt(
    flags: str, tokens: int, share: int, model: Path
) -> None:
    assert prompt_mib(parse_launch(f"vllm serve {model} {flags}")) == tokens // 8 // share


@pytest.mark.parametrize(
    "command", ["vllm serve {0} --max-model-len auto", "vllm serve {0}/gone", "vllm serve org/name"]
)
def test_what_the_command_does_not_say_is_not_known(command: str, model: Path) -> None:
    assert prompt_mib(parse_launch(command.format(model))) is None


def test_without_a_command_nothing_is_known() -> None:
    assert prompt_mib(None) is None
