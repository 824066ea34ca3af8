"""The part of the trial that runs in the target's interpreter: a tiny model and the real engine.

Standard library at import time; run by path, needs nothing of kvpatch. Usage:
``trial_child.py model FOLDER`` and ``trial_child.py engine FOLDER CONNECTOR``.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PROMPTS = ("The key of a chunk depends on its position", "x")
MAX_TOKENS = 8
STOP = 'kill -TERM "-$1"; sleep 5; kill -KILL "-$1" 2>/dev/null'
CONNECTORS_MODULE = "trial_connectors"


def die_with_parent() -> None:
    """End this process group when stdin closes, so that a killed trial leaves no engine."""
    while os.read(0, 1):
        pass
    # From a session of its own: the first signal ends this process too.
    subprocess.Popen(["sh", "-c", STOP, "sh", str(os.getpgid(0))], start_new_session=True)


def write_result(folder: Path, name: str, result: dict[str, Any]) -> None:
    """Leave the result as ``FOLDER/NAME.json``, whole or not at all."""
    scratch = folder / f"{name}.part"
    scratch.write_text(json.dumps(result), encoding="utf-8")
    scratch.replace(folder / f"{name}.json")


def transfer_config(connector: str, facts: str) -> dict[str, Any]:
    """The ``kv_transfer_config`` of a connector name; ``MultiConnector`` holds both probes."""
    if connector == "MultiConnector":
        members = [transfer_config(name, facts) for name in ("OtherProbe", "LMCacheConnectorProbe")]
        return {
            "kv_connector": connector,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": members},
        }
    return {
        "kv_connector": connector,
        "kv_role": "kv_both",
        "kv_connector_module_path": CONNECTORS_MODULE,
        "kv_connector_extra_config": {"facts": facts},
    }


def build_model(folder: Path) -> None:
    """Save a random Llama of 4 layers and a byte-level tokenizer into FOLDER/model."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    target = folder / "model"
    bytewise = Tokenizer(models.BPE())
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(special),
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bytewise.train_from_iterator([], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise, bos_token=special[0], eos_token=special[1]
    )
    tokenizer.save_pretrained(target)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        # With the default the logits of a random model are almost flat.
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


def run_engine(folder: Path, connector: str) -> dict[str, Any]:
    """Start the engine with that connector, generate, and ask the worker what it holds."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(folder / "model"),
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        kv_cache_memory_bytes=64 * 1024 * 1024,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_hybrid_kv_cache_manager=True,
        worker_extension_cls=f"{CONNECTORS_MODULE}.Witness",
        kv_transfer_config=transfer_config(connector, str(folder / "facts")),
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    outputs = engine.generate(list(PROMPTS), sampling, use_tqdm=False)
    result = {
        "pid": os.getpid(),
        "tokens": [len(output.outputs[0].token_ids) for output in outputs],
        "workers": engine.collective_rpc("trial_facts"),
    }
    engine.llm_engine.engine_core.shutdown()
    return result


def main(argv: list[str]) -> int:
    """Do what the arguments say; the result is a file in FOLDER."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    task, folder = argv[0], Path(argv[1])
    if task == "model":
        build_model(folder)
        write_result(folder, "model-built", {"built": True})
        return 0
    write_result(folder, "engine", run_engine(folder, argv[2]))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # LMCache's threads can keep a finished process alive.
    os._exit(code)
