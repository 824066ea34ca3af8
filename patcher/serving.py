"""The command that starts vLLM for a profile, and what has to run or be set before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from . import place
from .attention_backend import asked_for, blended_with
from .coercion import CONFIG_VARIABLE
from .kv_size import GIB
from .model_runner import BARE_SETTING, SKIPS, VARIABLE, second_runner_for
from .outcome import KvpatchError
from .sizing import BLOCK, Numbers, Wanted, reference
from .templates import Pair, Template

# Before, the flags set no number of blocks and vLLM stops.
_SIZE_FLAG = Version("0.14.0")
_TIERS = Version("0.22.0")
_TIER_RENAMED = Version("0.23.0")
_SERVER_COMMAND = Version("0.4.3")
_PORT = 5555
MODEL = "MODEL"
"""Stands in the command where no model was named."""
_CHUNK = 256


@dataclass(frozen=True)
class Serve:
    """How vLLM is started.

    Attributes:
        environ: variables to set, which its worker processes need too.
        argv: the command.
        server: a command to start before it; empty for none.
        why: what the flags are for.
        notes: what has to be known besides.
        folders: where vLLM itself keeps chunks.
    """

    environ: Mapping[str, str]
    argv: tuple[str, ...]
    server: tuple[str, ...]
    why: str
    notes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def serving(
    template: Template,
    pair: Pair,
    wanted: Wanted,
    made: Numbers,
    *,
    config: str,
    folder: str | None = None,
    extra: object = None,
) -> Serve:
    """The command for a pair.

    Args:
        template: of the profile.
        pair: what it is for.
        wanted: model and machine.
        made: the computed numbers.
        config: path of LMCache's file.
        folder: where a file-system tier of vLLM's own keeps its files; None for no such tier.
        extra: LMCache's ``extra_config``, where the profile has another than its own.
    """
    model = str(wanted.model_path) if wanted.model_path else MODEL
    argv = ["vllm", "serve", model]
    environ = {"PYTHONHASHSEED": "0"}
    server: tuple[str, ...] = ()
    notes: list[str] = []
    if not wanted.model_path:
        notes.append(
            f"{MODEL} stands for the model in the command: write its folder, or its name on the "
            f"hub. Sizes are those of {reference(wanted)}; --model FOLDER has them computed."
        )
    if template.blends:
        argv.append("--no-enable-prefix-caching")
    if template.kind == "lmcache":
        environ = {CONFIG_VARIABLE: config, **environ}
        models = second_runner_for(pair.vllm)
        if models:
            environ[VARIABLE] = "0"
        transfer: dict[str, Any] = {**template.connector(pair), "kv_role": "kv_both"}
        why = _graphs(template, pair, argv, transfer)
        backend = blended_with(extra, pair.lmcache) if template.blends else None
        if backend is not None:
            words, variables = asked_for(pair.vllm, backend)
            argv += words
            environ |= variables
            why += (
                f" {backend} is the one attention back end that LMCache blends with; vLLM may take "
                "another by itself, as it does on Blackwell GPUs (SM 10.x)."
            )
        if models:
            why += (
                f" {VARIABLE}=0 (letter V): vLLM {pair.vllm} would take Model Runner V2 for "
                f"{models}, and {SKIPS} there."
            )
        argv += ["--kv-transfer-config", json.dumps(transfer)]
    elif template.kind == "server":
        server = _server(pair, made, wanted)
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://localhost",
                "lmcache.mp.port": _PORT,
            },
        }
        argv += ["--kv-transfer-config", json.dumps(transfer)]
        why = "LMCache's server holds the chunks; the flags name where it listens."
    else:
        why = _native(pair, wanted, made, argv, folder, notes)
    argv += _sizes(wanted, made, template, notes)
    tiered = template.kind == "vllm" and pair.vllm is not None and pair.vllm >= _TIERS
    folders = (folder,) if tiered and folder is not None else ()
    return Serve(environ, tuple(argv), server, why, tuple(notes), folders)


def _graphs(template: Template, pair: Pair, argv: list[str], transfer: dict[str, Any]) -> str:
    bare = pair.vllm is not None and pair.vllm >= BARE_SETTING
    if bare:
        transfer["kv_connector_extra_config"] = {"use_layerwise": True}
        if template.by_layer(pair):
            use = "blending" if template.blends else "use_layerwise"
            return (
                f"The bare use_layerwise makes vLLM take piecewise CUDA graphs, which {use} "
                "needs; vLLM does not see `use_layerwise` in LMCache's file."
            )
        return (
            "The bare use_layerwise makes vLLM take piecewise CUDA graphs: with full ones a fully "
            "cached prompt can skip its load. LMCache does not read it there."
        )
    if template.by_layer(pair):
        argv.append("--enforce-eager")
        return (
            "Layer by layer takes piecewise CUDA graphs or none. Only from vLLM 0.17 on "
            '"kv_connector_extra_config": {"use_layerwise": true} gives the former.'
        )
    return "The connector is LMCache's; vLLM reads nothing of the file."


def _server(pair: Pair, made: Numbers, wanted: Wanted) -> tuple[str, ...]:
    newer = pair.lmcache is None or pair.lmcache >= _SERVER_COMMAND
    start = ["lmcache", "server"] if newer else ["python", "-m", "lmcache.v1.multiprocess.server"]
    size = f"{made.cpu_gib * wanted.ranks:g}"
    start += ["--host", "localhost", "--port", str(_PORT), "--chunk-size", str(_CHUNK)]
    return (*start, "--l1-size-gb", size, "--eviction-policy", "LRU")


def _native(
    pair: Pair,
    wanted: Wanted,
    made: Numbers,
    argv: list[str],
    folder: str | None,
    notes: list[str],
) -> str:
    total = made.cpu_gib * wanted.ranks
    if pair.vllm is None:
        raise KvpatchError(
            "no-vllm",
            "this profile hangs on the release of vLLM, and there is none beside LMCache",
            "name it: --vllm 0.32.0",
        )
    transfer: dict[str, Any] = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    if pair.vllm < _SIZE_FLAG:
        extra: dict[str, Any] = {"num_cpu_blocks": made.blocks, "block_size": BLOCK}
        transfer["kv_connector_extra_config"] = extra
        argv += ["--kv-transfer-config", json.dumps(transfer)]
        why = (
            f"{made.blocks} blocks of {BLOCK} tokens on each rank take {made.cpu_gib:g} GiB. The "
            "flags for it set no number of blocks in this vLLM, which then stops."
        )
    elif folder is not None and pair.vllm >= _TIERS:
        kind = "fs" if pair.vllm >= _TIER_RENAMED else "fs_python"
        transfer["kv_connector_extra_config"] = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": int(total * GIB),
            "secondary_tiers": [{"type": kind, "root_dir": folder}],
        }
        argv += ["--kv-transfer-config", json.dumps(transfer)]
        why = f"CPU memory of {total:g} GiB for all ranks, and the folder behind it."
        notes.append(f"vLLM deletes nothing in {folder}; watch its free space.")
        if pair.vllm < Version("0.27.0"):
            notes.append(f"{folder} must take O_DIRECT: this vLLM opens its files with it.")
    else:
        argv += ["--kv-offloading-size", f"{total:g}"]
        why = f"{total:g} GiB of CPU memory for all ranks together."
    if folder is not None and pair.vllm < _TIERS:
        notes.append(f"vLLM {pair.vllm} has no file-system tier (from {_TIERS} on): no {folder}.")
    elif folder is None and pair.vllm >= _TIERS:
        notes.append("Give --gds-path DIR for vLLM's file-system tier behind CPU memory.")
    return why


def _sizes(wanted: Wanted, made: Numbers, template: Template, notes: list[str]) -> list[str]:
    found: list[str] = []
    if wanted.ranks > 1:
        found += ["--tensor-parallel-size", str(wanted.ranks)]
    if wanted.longest:
        found += ["--max-model-len", str(wanted.longest)]
    if wanted.dtype:
        found += ["--dtype", wanted.dtype]
        notes.append(
            f"--dtype {wanted.dtype} is set: LMCache blends it alone, and the model has another."
        )
    if wanted.kv_dtype != "auto":
        found += ["--kv-cache-dtype", wanted.kv_dtype]
    if template.gds and made.share is not None:
        found += ["--gpu-memory-utilization", f"{made.share:.2f}"]
        notes.append(
            f"--gpu-memory-utilization {made.share:.2f} is {made.whole:g} less {made.buffer_mib} "
            f"MiB over {wanted.gpu_gib:g} GiB: no release of vLLM counts the GDS buffer."
        )
    elif template.gds:
        notes.append(
            f"Lower --gpu-memory-utilization by {made.buffer_mib} MiB over the GPU's memory, which "
            "no release of vLLM does by itself; --gpu-memory GIB has it computed."
        )
    return found


def shell(words: tuple[str, ...] | list[str], *, wide: bool = True) -> str:
    """A command as a shell reads it; ``wide`` puts each option on a line of its own."""
    if not wide:
        return " ".join(map(quoted, words))
    lines = [""]
    for word in words:
        if word.startswith("--"):
            lines.append(f"  {quoted(word)}")
        else:
            lines[-1] = f"{lines[-1]} {quoted(word)}" if lines[-1] else quoted(word)
    return " \\\n".join(lines)


def quoted(text: str) -> str:
    """A word as bash reads it, in ASCII."""
    return place.quoted(text, in_ascii=True)
