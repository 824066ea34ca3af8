"""The part of the smoke that runs in the target's interpreter: one start of the real engine.

Run by path with one argument, a JSON file that says what to do and where the result goes. Standard
library at import time, Python 3.9 or newer, nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MOST_LINKED = 8
STOP = 'kill -TERM "-$1"; sleep 5; kill -KILL "-$1" 2>/dev/null'


def die_with_parent() -> None:
    """End this process group when stdin closes, so that a killed smoke leaves no engine."""
    while os.read(0, 1):
        pass
    # From a session of its own: the first signal ends this process too.
    subprocess.Popen(["sh", "-c", STOP, "sh", str(os.getpgid(0))], start_new_session=True)


class Run:
    """One start of the engine, and what is written down of it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.out = Path(order["out"])
        self.result: dict[str, Any] = {"stage": "begin", "stages": {}}
        self.begin = time.monotonic()
        self.harness: Any = None
        self.engine: Any = None
        self.witness: Any = None

    def stage(self, name: str) -> None:
        """Says how far it came, so that whatever ends this process, that is known."""
        self.result["stage"] = name
        self.result["stages"][name] = round(time.monotonic() - self.begin, 3)
        self.save()

    def save(self) -> None:
        """The result so far, whole or not at all."""
        scratch = self.out.with_suffix(".part")
        scratch.write_text(json.dumps(self.result), encoding="utf-8")
        scratch.replace(self.out)

    def answer(self, entry: dict[str, Any]) -> None:
        """Write down one request's answer, a line of its own."""
        with self.out.with_suffix(".answers").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")


class Events(list[str]):
    """What happened, written down as it happens: what ends by a signal says nothing later."""

    def __init__(self, save: Callable[[], None]) -> None:
        super().__init__()
        self.save = save

    def append(self, event: str) -> None:
        """One more, saved."""
        super().append(event)
        self.save()


def main(path: str) -> int:
    """Do what the file says; whatever happens, the result says how far it came."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    run = Run(json.loads(Path(path).read_text(encoding="utf-8")))
    try:
        work(run)
        run.stage("done")
    except BaseException as error:
        traceback.print_exc()
        run.result["error"] = {
            "type": type(error).__name__,
            "text": str(error)[:4000],
            "where": place_of(error),
            "chain": chain(error),
        }
        run.save()
        return 1
    finally:
        if run.harness is not None:
            run.result["harness_problem"] = run.harness.problem
            run.result["broken"] = run.harness.broken
            run.save()
    return 0


def place_of(error: BaseException) -> str:
    """Where it was raised: the last place of what is watched, if it went through any.

    The scripts beside this one stand between LMCache and what it calls.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = Path(__file__).parent
    others = [frame for frame in frames if Path(frame.filename).parent != own]
    last = (others or frames)[-1:]
    return "".join(f"{frame.name} ({Path(frame.filename).name})" for frame in last)


def chain(error: BaseException) -> list[dict[str, Any]]:
    """An exception, then what it was raised from or while; each with the places it went through.

    A place is file, line and function; the last is where it was raised.
    """
    told: list[dict[str, Any]] = []
    link: BaseException | None = error
    while link is not None and len(told) < MOST_LINKED:
        frames = traceback.extract_tb(link.__traceback__)
        places = [[frame.filename, frame.lineno, frame.name] for frame in frames]
        told.append({"type": type(link).__name__, "text": str(link)[:1000], "places": places})
        link = link.__cause__ or link.__context__
    return told


def work(run: Run) -> None:
    """Make the model if ordered, start the engine, and send what is ordered."""
    order = run.order
    run.stage("import")
    import smoke_chunks
    import smoke_harness
    import smoke_imports
    import smoke_paged
    import smoke_platform
    import smoke_prompts
    import smoke_witness
    from transformers import AutoTokenizer

    if "make" in order:
        # After what every start has to import, so that only the making counts as that.
        run.stage("model")
        import smoke_model

        smoke_model.make(Path(order["make"]["folder"]), order["make"]["spec"])
    run.stage("tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(order["engine"]["model"])
    prompts = smoke_prompts.build(tokenizer, order["separator"], order["least"], order["seed"])
    run.result["prompts"] = {
        name: {"length": len(one["tokens"]), "cached": one["cached"]}
        for name, one in prompts.items()
    }
    run.stage("vllm")
    named = order["cpu"] and smoke_platform.settle(run.out.with_suffix(".names"))
    import vllm  # noqa: F401

    if order["cpu"]:
        smoke_platform.variables(os.environ)
    if order["harness"]:
        run.harness = smoke_harness.Harness(gds=order["gds"])
        run.harness.install()
    chunks = smoke_chunks.Chunks()
    paged = smoke_paged.Paged(run.harness.layout if run.harness else None)
    run.witness = smoke_witness.Witness(order["fault"], smoke_imports.after_import, chunks, paged)
    run.witness.events = run.result["events"] = Events(run.save)
    start(run, order["engine"])
    run.result["engine"] = facts(run.engine)
    run.stage("requests")
    if order["role"] == "layerwise":
        run.witness.watch_cache(smoke_witness.cache_engine())
    if order["stored"] and order["role"] == "blend":
        chunks.load(order["stored"])
    for step in order["steps"]:
        serve(run, prompts[step["prompt"]]["tokens"], step)
    if order["stored"] and order["role"] == "store":
        chunks.save(order["stored"])
    if run.harness is not None:
        names = [smoke_platform.STAND_IN] if named else []
        run.result["stand_ins"] = run.harness.named() + names
        run.result["engine"]["kv_shape"] = run.harness.layout.shape
    if order.get("originals"):
        again(run, prompts)
    if order.get("together"):
        # The last, because the engine may die of it.
        run.stage("together")
        for step in order["together"]:
            serve(run, prompts[step["prompt"]]["tokens"], step, prompts["filler"]["tokens"])


def start(run: Run, wanted: dict[str, Any], stage: str = "start") -> None:
    """Start the engine with what this release's arguments have."""
    from dataclasses import fields

    from vllm import LLM
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    if run.order.get("cpu"):
        import smoke_platform

        smoke_platform.look_here()
    run.stage(stage)
    known = {field.name for field in fields(EngineArgs)}
    given = {name: value for name, value in wanted.items() if name in known}
    if "kv_cache_memory_bytes" not in given:
        # Then vLLM makes its cache of that share.
        given.pop("gpu_memory_utilization", None)
    run.result["unknown_arguments"] = sorted(set(wanted) - set(given))
    if "kv_transfer_config" in given:
        given["kv_transfer_config"] = KVTransferConfig(**given["kv_transfer_config"])
    run.engine = LLM(**given)


def again(run: Run, prompts: dict[str, Any]) -> None:
    """The same without LMCache once more, with the files as they were before kvpatch."""
    import smoke_originals

    stop(run)
    run.result["originals"] = smoke_originals.put_back(run.order["originals"])
    start(run, run.order["engine"], "originals")
    for name in run.order["again"]:
        serve(run, prompts[name]["tokens"], {"prompt": name, "originals": True})


def stop(run: Run) -> None:
    """End the engine of this process, so that another one can start."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    core = getattr(run.engine.llm_engine, "engine_core", None)
    if core is not None:
        core.shutdown()
    run.engine = None
    cleanup_dist_env_and_memory()


def settle(folder: str) -> None:
    """Wait until the files that are written beside the requests have not grown for a second."""
    before, same = -1, 0
    for _ in range(100):
        time.sleep(0.2)
        now = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        same = same + 1 if now == before else 0
        if same == 5:
            return
        before = now


def serve(run: Run, tokens: list[int], step: dict[str, Any], filling: Sequence[int] = ()) -> None:
    """Send one prompt and write down the whole distribution of the next token.

    A step with ``spare`` sends a prompt of the tokens ``filling`` before it, at the same time.
    """
    import torch
    from vllm import SamplingParams

    witness = run.witness
    witness.begin()
    witness.at_request(step["prompt"])
    witness.storing = step.get("store", False)
    witness.fill_separators = step.get("fill", False)
    witness.comparing = step.get("compare", False)
    if step.get("ratio") is not None:
        witness.set_ratio(step["ratio"])
    jitter = Jitter(run.engine, step["jitter"]) if step.get("jitter") else None
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    sent = [tokens]
    parts = None
    if step.get("spare"):
        import smoke_filler

        budget = run.order["engine"]["max_num_batched_tokens"]
        sent.insert(0, smoke_filler.filler(list(filling), budget, step["spare"]))
        parts = smoke_filler.Parts(worker_runner(run.engine))
    witness.beside = sent[0] if parts else []
    begin = time.monotonic()
    outputs = run.engine.generate(
        [{"prompt_token_ids": one} for one in sent], sampling, use_tqdm=False
    )
    seconds = time.monotonic() - begin
    output = outputs[-1]
    if jitter is not None:
        jitter.remove()
    if parts is not None:
        parts.remove()
    witness.end()
    first = output.outputs[0].logprobs[0]
    values = torch.tensor([first[token].logprob for token in sorted(first)])
    entry = {
        **step,
        "seconds": round(seconds, 4),
        "token": output.outputs[0].token_ids[0],
        "logprobs": base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii"),
        **witness.now,
        **({"parts": parts.seen} if parts else {}),
    }
    if step.get("store") and witness.cache is not None:
        if run.order["gds"]:
            # What goes to GDS is known once it is written, which no request waits for.
            settle(run.order["gds_path"])
        entry["known"] = witness.known(tokens)
    run.answer(entry)


class Jitter:
    """One unit in the last place, up or down, on all that each layer's parts give."""

    def __init__(self, engine: Any, seed: int) -> None:
        import torch

        self.source = torch.Generator().manual_seed(seed)
        model = worker_model(engine)
        inner = getattr(model, "model", model)
        parts = [
            part
            for layer in inner.layers
            for part in (layer.self_attn.qkv_proj, layer.self_attn.attn, layer.self_attn, layer.mlp)
        ]
        self.hooks = [part.register_forward_hook(self.shake) for part in parts]

    def shake(self, _module: Any, _given: Any, output: Any) -> Any:
        """The output with each number moved by its dtype's epsilon."""
        import torch

        whole = output[0] if isinstance(output, tuple) else output
        signs = torch.randint(0, 2, whole.shape, generator=self.source).to(whole.device) * 2 - 1
        shaken = whole * (1 + signs.to(whole.dtype) * torch.finfo(whole.dtype).eps)
        return (shaken, *output[1:]) if isinstance(output, tuple) else shaken

    def remove(self) -> None:
        """Let the model compute as before."""
        for hook in self.hooks:
            hook.remove()


def worker_runner(engine: Any) -> Any:
    """The model runner of the only worker, which runs in this process."""
    [runner] = engine.collective_rpc(lambda worker: worker.model_runner)
    return runner


def worker_model(engine: Any) -> Any:
    """The bare model of the only worker, which runs in this process."""
    runner = worker_runner(engine)
    return runner.get_model() if hasattr(runner, "get_model") else runner.model


def facts(engine: Any) -> dict[str, Any]:
    """What this engine is made of, in the names of its classes."""
    runner = worker_runner(engine)
    config = engine.llm_engine.vllm_config
    model = worker_model(engine)
    attention = getattr(model, "model", model).layers[0].self_attn.attn
    mode = getattr(config.compilation_config, "cudagraph_mode", None)
    core = getattr(engine.llm_engine, "engine_core", None)
    core = getattr(core, "engine_core", core)
    executor = getattr(core, "model_executor", getattr(engine.llm_engine, "model_executor", None))
    return {
        "runner": f"{type(runner).__module__}.{type(runner).__name__}",
        "graph_mode": getattr(mode, "name", str(mode)),
        "attention": type(attention.impl).__name__,
        "executor": type(executor).__name__,
        "model": type(model).__name__,
        "dtype": str(config.model_config.dtype).replace("torch.", ""),
        "layers": len(getattr(model, "model", model).layers),
        "block_size": config.cache_config.block_size,
    }


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # LMCache's threads can keep a finished process alive.
    os._exit(code)
