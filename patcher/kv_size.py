"""How much memory the KV cache of a prompt takes, from the model's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from .model_config import DTYPE_BYTES, Model
from .outcome import ExitCode, KvpatchError

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class KvSize:
    """The KV cache of one token on one rank.

    Attributes:
        bytes: of all layers with attention, each token kept whole, as LMCache stores it.
        windowed_bytes: the part of it in layers that look back ``window`` tokens.
        window: in tokens; 0 for none.
        formula: how ``bytes`` is computed, with the numbers in it.
    """

    bytes: int
    windowed_bytes: int
    window: int
    formula: str

    def of(self, tokens: int) -> int:
        """Bytes of so many tokens as LMCache stores them: no layer forgets any."""
        return self.bytes * tokens

    def in_engine(self, tokens: int) -> int:
        """Bytes of so many tokens in vLLM's own cache, where windowed layers forget."""
        seen = min(tokens, self.window) if self.window else tokens
        return (self.bytes - self.windowed_bytes) * tokens + self.windowed_bytes * seen


def kv_size(model: Model, ranks: int = 1, kv_dtype: str = "auto") -> KvSize:
    """The size on one of ``ranks`` tensor-parallel ranks.

    Heads are shared out over the ranks; where there are fewer heads than ranks each has one, and
    MLA's one vector is on every rank.

    Raises:
        KvpatchError: ``bad-dtype``, ``bad-ranks``: exit 2.
    """
    width = width_of(model.dtype if kv_dtype == "auto" else kv_dtype)
    if ranks < 1:
        raise KvpatchError(
            "bad-ranks", f"{ranks} ranks can't be", "give --tp 1 or more", ExitCode.USAGE
        )
    if model.latent_size:
        layer = model.latent_size * width
        formula = (
            f"{model.layers} layers * {model.latent_size} (MLA latent and rope) * {width} bytes"
        )
    else:
        heads = max(1, model.kv_heads // ranks)
        if model.kv_heads > ranks and model.kv_heads % ranks:
            raise KvpatchError(
                "bad-ranks",
                f"{model.kv_heads} KV heads can't be shared out over {ranks} ranks",
                "give --tp a divisor of the number of KV heads",
                ExitCode.USAGE,
            )
        layer = heads * (model.head_size + model.value_size) * width
        sizes = (
            f"2 * {heads} KV heads * {model.head_size}"
            if model.head_size == model.value_size
            else f"{heads} KV heads * ({model.head_size} + {model.value_size})"
        )
        formula = f"{model.layers} layers * {sizes} * {width} bytes"
    return KvSize(
        bytes=layer * model.layers,
        windowed_bytes=layer * model.windowed_layers,
        window=model.window,
        formula=f"{formula} = {layer * model.layers} bytes a token",
    )


def unshared(model: Model, ranks: int) -> str:
    """Why vLLM can't share out a model's heads over so many ranks; empty where it can.

    Its configuration stops at heads that leave a rest, its models at KV heads of which neither the
    number nor the ranks divide the other.
    """
    if model.heads % ranks:
        return f"{model.heads} attention heads can't be shared out over {ranks} ranks"
    if model.latent_size or not model.kv_heads % ranks or not ranks % model.kv_heads:
        return ""
    return f"{model.kv_heads} KV heads can't be shared out over, or repeated on, {ranks} ranks"


def width_of(dtype: str) -> int:
    """Bytes of one value.

    Raises:
        KvpatchError: ``bad-dtype``, exit 2.
    """
    width = DTYPE_BYTES.get(dtype)
    if width is None:
        raise KvpatchError(
            "bad-dtype",
            f"{dtype!r} is no dtype of a KV cache",
            f"take one of: auto, {', '.join(DTYPE_BYTES)}",
            ExitCode.USAGE,
        )
    return width


def whole_mib(size: int) -> int:
    """MiB that hold so many bytes."""
    return -(-size // MIB)


def whole_gib(size: int) -> int:
    """GiB that hold so many bytes."""
    return -(-size // GIB)


def utilization(gpu_gib: float, buffer_mib: int, share: float) -> float:
    """vLLM's share of the GPU's memory with a buffer beside it, rounded down to a hundredth.

    Raises:
        KvpatchError: ``no-gpu-memory``, exit 3: too little is left.
    """
    left = share - buffer_mib / 1024 / gpu_gib
    if left < 0.1:
        raise KvpatchError(
            "no-gpu-memory",
            f"a GDS buffer of {buffer_mib} MiB leaves vLLM nothing of a GPU of {gpu_gib:g} GiB",
            "give a lower --max-model-len, more --tp, or --kv-dtype fp8",
        )
    return int(left * 100 + 1e-9) / 100
