"""What the longest prompt takes of the model that a command serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .lint_context import TENSOR
from .outcome import KvpatchError

if TYPE_CHECKING:
    from .launch import Launch


def prompt_mib(launch: Launch | None) -> int | None:
    """MiB of keys and values on one rank of the longest prompt; None where the model is not known.

    A model is read that the command names by an absolute path.
    """
    if launch is None or not launch.known or not Path(launch.model or "").is_absolute():
        return None
    from .model_config import read_model
    from .sizing import Wanted, numbers

    longest, dtype = launch.last("max-model-len"), launch.last("kv-cache-dtype")
    try:
        tokens = None if longest is None else int(longest)
        model = read_model(Path(launch.model or ""), longest=tokens)
        ranks = launch.parallel(TENSOR)
        wanted = Wanted(model=model, ranks=ranks, longest=tokens, kv_dtype=str(dtype or "auto"))
        return numbers(wanted, gds=True).buffer_mib
    except (ValueError, KvpatchError):
        return None
