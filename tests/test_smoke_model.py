from __future__ import annotations

import pytest
from targets import run_in_target

CODE = """
import json, tempfile
from pathlib import Path
import smoke_model
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    spec = {{"arch": {arch!r}, "rope": {rope!r}, "tokenizer": {tokenizer!r}, "dtype": "float32",
             "seed": 1}}
    smoke_model.make(folder, spec)
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {{}}
    text = " # # odd \\u00e9"
    tokens = tokenizer.encode(text)
    print(json.dumps([config["architectures"], rope.get("rope_type", "default"),
                      tokenizer.decode(tokens, skip_special_tokens=True) == text,
                      tokenizer.encode(""), len(tokens)]))
"""


@pytest.mark.stack
@pytest.mark.parametrize(
    ("arch", "rope", "tokenizer"),
    [("llama", "default", "bos"), ("qwen2", "yarn", "no-bos"), ("qwen3", "llama3", "bos")],
)
def test_the_model_is_what_was_asked_for(arch: str, rope: str, tokenizer: str) -> None:
    found = run_in_target(CODE.format(arch=arch, rope=rope, tokenizer=tokenizer))
    assert found[0] == [f"{arch.capitalize()}ForCausalLM"]
    assert found[1] == rope
    assert found[2] is True
    assert len(found[3]) == (1 if tokenizer == "bos" else 0)
    assert found[4] == 11 + len(found[3])
