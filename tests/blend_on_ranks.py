"""A real engine of several tensor-parallel ranks that blends; run by the target with an order.

What the smoke stands in for on a CPU is stood in for here too. Each rank writes down the tokens
that its blender picked.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import smoke_harness
import smoke_imports
import smoke_model
import smoke_platform
import smoke_prompts

OUT, RANKS = Path(sys.argv[1]), int(sys.argv[2])
MODEL, RATIO = OUT / "model", OUT / "ratio"
SPEC = {"arch": "llama", "rope": "default", "tokenizer": "bos", "dtype": "float32", "seed": 1}
SEPARATOR = " # # "
LONGEST = 2048


def watch(module: Any) -> None:
    """Let the ratio be changed from outside, and write the picks down."""
    process = module.LMCBlender.process_qkv

    def process_qkv(self: Any, *args: Any) -> Any:
        import torch

        self.common_metadata.recomp_ratios = [float(RATIO.read_text())]
        result = process(self, *args)
        if args[4] in self.common_metadata.check_layers:
            rank = torch.distributed.get_rank()
            with (OUT / f"rank-{rank}.jsonl").open("a") as stream:
                stream.write(json.dumps(self.metadata.imp_indices.tolist()) + "\n")
        return result

    module.LMCBlender.process_qkv = process_qkv


def main() -> None:
    """Store chunks, send them in another order at several ratios, and print the answers."""
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    prompts = smoke_prompts.build(tokenizer, SEPARATOR, 280, 1)
    wanted = {
        "model": str(MODEL),
        "max_num_seqs": 4,
        "max_model_len": LONGEST,
        "max_num_batched_tokens": LONGEST,
        "max_logprobs": -1,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": False,
        "disable_hybrid_kv_cache_manager": True,
        "enforce_eager": True,
        "dtype": "float32",
        "tensor_parallel_size": RANKS,
        "kv_transfer_config": KVTransferConfig(
            kv_connector="LMCacheConnectorV1",
            kv_role="kv_both",
            kv_connector_extra_config={"use_layerwise": True},
        ),
    }
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    engine = LLM(**{name: value for name, value in wanted.items() if name in known})
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    found = []
    asked = [("one-token", 1.0), ("store", 1.0)]
    asked += [(f"reordered-{number}", ratio) for number in range(3) for ratio in (1.0, 0.15, 0.5)]
    for name, ratio in asked:
        RATIO.write_text(str(ratio))
        request = {"prompt_token_ids": prompts[name]["tokens"]}
        [output] = engine.generate([request], sampling, use_tqdm=False)
        first = output.outputs[0].logprobs[0]
        found.append([name, ratio, [first[token].logprob for token in sorted(first)]])
    print(json.dumps(found), flush=True)
    engine.llm_engine.engine_core.shutdown()


# Each rank is a process of its own that runs this file as far as here, and not main.
import vllm  # noqa: E402, F401

smoke_platform.settle(OUT / f"names-{os.getpid()}")
smoke_platform.variables(os.environ)
if RANKS > 1 and os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "all":
    # Older workers want a core for each rank.
    cores = sorted(os.sched_getaffinity(0))
    bound = "|".join(str(cores[rank % len(cores)]) for rank in range(RANKS))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = bound
smoke_harness.Harness().install()
smoke_imports.after_import("lmcache.v1.compute.blend.blender", watch)

if __name__ == "__main__":
    MODEL.mkdir()
    smoke_model.make(MODEL, SPEC)
    RATIO.write_text("1.0")
    main()
    sys.stdout.flush()
    os._exit(0)
