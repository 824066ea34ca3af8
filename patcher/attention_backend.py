"""The attention back end of vLLM that LMCache blends with, and how it is asked for.

Read from ``infer_attn_backend_from_vllm`` of every LMCache release, and from vLLM's
``platforms/cuda.py``, ``envs.py`` and ``engine/arg_utils.py``.
"""

from __future__ import annotations

from packaging.version import Version

OPTION = "attention-backend"
OPTION_SINCE = Version("0.13.0")
VARIABLE = "VLLM_ATTENTION_BACKEND"
DROPPED = Version("0.15.0")
"""From here on vLLM does not read the variable."""
DENSE, SPARSE = "FLASH_ATTN", "FLASHINFER"
"""What LMCache blends with, and with ``enable_sparse``."""
ANY_SPARSE = Version("0.4.5")
"""From here on LMCache has a sparse back end beside any of vLLM's."""


def is_sparse(extra: object) -> bool:
    """Whether LMCache's ``extra_config`` turns on sparse attention."""
    return isinstance(extra, dict) and bool(extra.get("enable_sparse"))


def blended_with(extra: object, lmcache: Version | None) -> str | None:
    """The back end that this LMCache blends with under an ``extra_config``; None for any."""
    if not is_sparse(extra):
        return DENSE
    return None if lmcache is None or lmcache >= ANY_SPARSE else SPARSE


def asked_for(vllm: Version | None, name: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of the command and the variables by which a vLLM takes a back end.

    Newer releases leave the variable alone, so it stands for a release that is not known too.
    """
    if vllm is not None and vllm >= OPTION_SINCE:
        return (f"--{OPTION}", name), {}
    return (), {VARIABLE: name}
