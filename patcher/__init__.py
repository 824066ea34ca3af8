"""Makes CacheBlend work, provably, on the vLLM and LMCache a host already has."""

__version__ = "0.1.0"
