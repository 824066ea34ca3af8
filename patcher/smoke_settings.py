"""What a smoke sends to its engines: LMCache's configuration, vLLM's arguments, requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .kv_size import kv_size
from .model_config import Model
from .outcome import ExitCode, KvpatchError

SWEEP = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0)
REORDERED = tuple(f"reordered-{number}" for number in range(5))
SHAKES = (1, 2, 3)
LEAST_TOKENS = 280
SEED = 1
# In GiB and MiB; LMCache takes all of it at its start.
_MEMORY = {"max_local_cpu_size": 1.0, "gds_buffer_size": 256, "cufile_buffer_size": 256}
# Rounding in float32 hides nothing; the kernels on a GPU take bfloat16 alone.
TINY_DTYPE, OWN_DTYPE = "float32", "bfloat16"
# Tokens that a model is given room for at least, and how many such prompts its cache holds: LMCache
# has two buffers of a prompt's size in what one layer's cache has.
LEAST_ROOM, PROMPTS = 2048, 4
# What vLLM looks for at its start, and takes for its cache where it is not told that in bytes: a
# server may use the rest.
_SHARE = 0.01


@dataclass(frozen=True)
class Settings:
    """An LMCache configuration, and the few values of it that the smoke has to know."""

    values: Mapping[str, Any]
    ratio: float
    separator: str
    chunk_size: int
    least: int
    gds: bool


@dataclass(frozen=True)
class Room:
    """What an engine is to have room for: a prompt (tokens), and its KV cache (bytes)."""

    longest: int
    cache: int


TINY = Room(LEAST_ROOM, 64 << 20)


def room(asked: Settings, model: Model) -> Room:
    """Of a user's model: room for what a smoke sends, and no more than that.

    Nothing is known of its tokenizer: a separator is taken for as many tokens as it has bytes.
    """
    separators = len(asked.separator.encode()) * len(REORDERED)
    longest = min(max(2 * asked.least + separators, LEAST_ROOM), model.longest)
    return Room(longest, kv_size(model, kv_dtype=OWN_DTYPE).of(PROMPTS * longest))


def basic(has: Any, *, gds_path: Path | None) -> dict[str, Any]:
    """The smoke's own configuration, in the keys that this LMCache has (``has(name)``)."""
    values: dict[str, Any] = {
        "chunk_size": 64,
        "local_cpu": gds_path is None,
        "max_local_cpu_size": _MEMORY["max_local_cpu_size"],
        "enable_blending": True,
        "use_layerwise": True,
        "blend_special_str": " # # ",
        "blend_min_tokens": 64,
        "save_unfull_chunk": True,
    }
    if has("blend_recompute_ratios"):
        values |= {"blend_recompute_ratios": [0.15], "blend_check_layers": [1]}
    else:
        values["blend_recompute_ratio"] = 0.15
    if gds_path is not None:
        size = "gds_buffer_size" if has("gds_buffer_size") else "cufile_buffer_size"
        values |= {"gds_path": str(gds_path), size: _MEMORY[size], "use_gds": True}
        if has("retrieve_locations"):
            values["retrieve_locations"] = ["GdsBackend"]
    return {name: value for name, value in values.items() if has(name)}


def modest(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with no more memory than the tiny model's chunks can fill.

    They may be made for a machine that serves, and two engines run at once.
    """

    def at_most(name: str, value: Any) -> Any:
        most = _MEMORY.get(name)
        sized = most is not None and isinstance(value, int | float) and value > most
        return most if sized else value

    return {name: at_most(name, value) for name, value in values.items()}


def settings(values: Mapping[str, Any]) -> Settings:
    """What is in a configuration, of which the smoke has to know.

    Raises:
        KvpatchError: ``no-blending``: it has no blending to prove; exit 2.
    """
    for name in ("enable_blending", "use_layerwise"):
        if values.get(name) is not True:
            raise KvpatchError(
                "no-blending",
                f"this configuration doesn't blend: {name} is {values.get(name)!r}",
                f"set {name}: true in it, or give another one",
                ExitCode.USAGE,
            )
    ratios = values.get("blend_recompute_ratios", values.get("blend_recompute_ratio", 0.15))
    ratio = ratios[0] if isinstance(ratios, list) else ratios
    chunk = int(values.get("chunk_size", 256))
    return Settings(
        values=dict(values),
        ratio=float(ratio),
        separator=str(values.get("blend_special_str", " # # ")),
        chunk_size=chunk,
        least=max(LEAST_TOKENS, chunk + 24, int(values.get("blend_min_tokens", 256)) + 24),
        gds=values.get("gds_path") is not None,
    )


def read_config(path: Path) -> dict[str, Any]:
    """A user's LMCache configuration.

    Raises:
        KvpatchError: ``no-file``, ``unreadable`` (exit 4): it can't be read; ``bad-config``: it
            is no mapping; exit 2.
    """
    from .yaml_source import read_bytes

    try:
        found = yaml.safe_load(read_bytes(path).decode("utf-8"))
    except UnicodeDecodeError:
        raise _bad_config(path, "it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise _bad_config(path, " ".join(str(error).split())) from None
    if not isinstance(found, dict):
        raise _bad_config(path, "it is no mapping of keys to values")
    return found


def _bad_config(path: Path, why: str) -> KvpatchError:
    return KvpatchError(
        "bad-config",
        f"{path} can't be taken as an LMCache configuration: {why}",
        "give a YAML file as LMCACHE_CONFIG_FILE takes it, or none",
        ExitCode.USAGE,
    )


def engine(
    model: str,
    *,
    room: Room,
    dtype: str,
    eager: bool,
    connector: Mapping[str, Any] | None,
) -> Any:
    """vLLM's arguments, in which no start differs but by its connector and ``eager``.

    Where not ``eager``, the release takes the graphs that it takes for anybody with that connector.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
        "disable_hybrid_kv_cache_manager": True,
        "max_logprobs": -1,
        "enforce_eager": eager,
        "max_model_len": room.longest,
        "max_num_batched_tokens": room.longest,
        "kv_cache_memory_bytes": room.cache,
        "gpu_memory_utilization": _SHARE,
        "dtype": dtype,
    }
    if connector is not None:
        arguments["kv_transfer_config"] = dict(connector)
    return arguments


def reference_steps() -> list[dict[str, Any]]:
    """Every prompt without any cache, some of them with rounding errors put in."""
    names = ("store", "permutation", "new-chunk", *REORDERED)
    names += ("together-store", "together-reordered")
    shaken = [{"prompt": name, "jitter": seed} for name in REORDERED for seed in SHAKES]
    return [*({"prompt": name} for name in names), *shaken, {"prompt": "one-token"}]


def store_steps() -> list[dict[str, Any]]:
    """The chunks, stored."""
    return [{"prompt": "store", "store": True}]


def first_steps() -> list[dict[str, Any]]:
    """What lets vLLM write into its cache, and is too short to be looked up."""
    return [{"prompt": "one-token"}]


def blend_steps(ratio: float, ratios: Sequence[float]) -> list[dict[str, Any]]:
    """What the blending engine is asked once the chunks are stored."""
    # At ratio 1 for what rounding does to rows that are computed anew.
    again = {"prompt": "twice", "fill": True, "compare": True}
    steps: list[dict[str, Any]] = [{**again, "ratio": share} for share in sorted({ratio, 1.0})]
    steps += [{"prompt": name, "fill": True, "ratio": 1.0} for name in ("permutation", "new-chunk")]
    # As it is, and with separators filled in: what blending costs, and what LMCache's zeros do.
    steps += [
        {"prompt": name, "sweep": True, "ratio": share, "fill": fill, "compare": fill}
        for fill in (False, True)
        for share in sorted({*ratios, ratio, 1.0})
        for name in REORDERED
    ]
    # Once more, where no time is taken: what becomes of separators that nothing fills in.
    steps.append({"prompt": REORDERED[0], "ratio": ratio, "fill": False, "compare": True})
    return [*steps, {"prompt": "one-token"}]


def together_steps(asked: Settings) -> list[dict[str, Any]]:
    """What the blending engine is asked last, for it may die of it.

    ``spare`` is how many tokens of a step's budget another prompt leaves: half of what is stored,
    so that a chunk is cut; one token behind what is loaded, where LMCache rounds down to whole
    chunks and so into what is loaded; and so many that it does not.
    """
    loaded = {"ratio": 1.0, "fill": True}
    return [
        {"prompt": "together-store", "store": True, "spare": asked.least // 2, **loaded},
        {"prompt": "together-reordered", **loaded},
        {"prompt": "together-after", "spare": asked.chunk_size, **loaded},
        {"prompt": "together-inside", "spare": 1, **loaded},
    ]


def layerwise_steps() -> list[dict[str, Any]]:
    """The control: a prompt stored and sent again."""
    return [{"prompt": "store", "store": True}, {"prompt": "twice"}]
