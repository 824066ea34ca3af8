"""Makes a tiny random model and its tokenizer in the target's interpreter; nothing is downloaded.

Runs in the target by path, with Python 3.9 or newer; needs torch, transformers and tokenizers of
the target and nothing of kvpatch. ``make(FOLDER, SPEC)`` is called by ``smoke_child.py``.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from pathlib import Path
from typing import Any

HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 4, 2, 64, 4
LONGEST = 2048
# With the default of 0.02 the logits of a random model are almost flat, and show nothing.
SPREAD = 0.15
ROPES: dict[str, dict[str, Any] | None] = {
    "default": None,
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LONGEST // 4},
    "linear": {"rope_type": "linear", "factor": 4.0},
}


def make(folder: Path, spec: dict[str, Any]) -> None:
    """Save model and tokenizer into the folder.

    Args:
        folder: where they go.
        spec: ``arch`` (llama, qwen2, qwen3), ``rope`` (a key of ``ROPES``), ``tokenizer``
            (bos, no-bos), ``dtype`` (a name of torch's), ``seed``.
    """
    import torch
    import transformers

    tokenizer = byte_tokenizer(bos=spec["tokenizer"] == "bos")
    tokenizer.save_pretrained(folder)
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    name = names[spec["arch"]]
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": HEADS * HEAD_SIZE,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": LONGEST,
        "initializer_range": SPREAD,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
        **rope_settings(spec["rope"], int(transformers.__version__.split(".")[0])),
    }
    if spec["arch"] == "qwen3":
        settings["head_dim"] = HEAD_SIZE
    torch.manual_seed(int(spec["seed"]))
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    model.to(getattr(torch, spec["dtype"])).save_pretrained(folder)


def rope_settings(rope: str, transformers_major: int) -> dict[str, Any]:
    """The rope of that kind, in the keys of that transformers."""
    scaling = ROPES[rope]
    if transformers_major < 5:
        return {"rope_theta": 10000.0, "rope_scaling": scaling}
    return {"rope_parameters": {"rope_theta": 10000.0, **(scaling or {"rope_type": "default"})}}


def byte_tokenizer(*, bos: bool) -> Any:
    """A byte-level BPE tokenizer without merges; with ``bos`` it begins every text with ``<s>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bytewise = Tokenizer(models.BPE())
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>"] if bos else ["</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(special),
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bytewise.train_from_iterator([], trainer)
    names = {"eos_token": "</s>"}
    if bos:
        names["bos_token"] = "<s>"  # noqa: S105
        start = ("<s>", bytewise.token_to_id("<s>"))
        bytewise.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[start]
        )
    return PreTrainedTokenizerFast(tokenizer_object=bytewise, **names)
