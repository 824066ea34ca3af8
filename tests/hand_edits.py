"""LMCache's instructions, followed by hand on a worker of vLLM."""

from __future__ import annotations

import re
from pathlib import Path

from fake_site import WORKER, FakeSite, install, make_site
from releases import release_file

IMPORTS = """
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
"""


def old_readme(stock: bytes, *, registered: bool = True, deferred: bool = True) -> bytes:
    """The older form: the connector's creation moves to the end of load_model, below registration.

    Args:
        stock: the released worker.
        registered: whether the first half was done.
        deferred: whether the second half was done.
    """
    text = _with_imports(stock.decode())
    added: list[str] = []
    if registered:
        added.append("VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.model)")
    if deferred:
        call = "    ensure_kv_transfer_initialized(vllm_config)\n"
        assert text.count(call) == 1
        text = text.replace(call, "    # ensure_kv_transfer_initialized(vllm_config)\n")
        added.append("ensure_kv_transfer_initialized(self.vllm_config)")
    return _end_of_load_model(text, *added).encode()


def new_readme(stock: bytes, model: str) -> bytes:
    """The newer form: registration just above the connector's creation.

    Args:
        stock: the released worker.
        model: what is registered, as written.
    """
    text = _with_imports(stock.decode())
    call = "        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)\n"
    assert text.count(call) == 1
    register = f"        VLLMModelTracker.register_model(ENGINE_NAME, {model})\n"
    return text.replace(call, register + call).encode()


def released_site(prefix: Path, version: str) -> FakeSite:
    """A site folder with the worker as it was really released, and an LMCache beside it."""
    site = make_site(prefix, version, bytes(release_file("vllm", version, WORKER)).decode())
    # Older than all that the patches of LMCache are made for: this is about the worker alone.
    install(site.path, "lmcache", "0.3.2", {"lmcache/__init__.py": ""})
    return site


def edited_site(prefix: Path) -> FakeSite:
    """The same of 0.10.0, where the older form of the instructions was followed rightly."""
    site = released_site(prefix, "0.10.0")
    site.worker.write_bytes(old_readme(site.worker.read_bytes()))
    return site


def _with_imports(text: str) -> str:
    line = "from vllm.logger import init_logger\n"
    assert text.count(line) == 1
    return text.replace(line, line + IMPORTS.lstrip("\n"))


def _end_of_load_model(text: str, *added: str) -> str:
    """Insert lines where a person would: below the last line of ``Worker.load_model``."""
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("    def load_model("))
    end = next(
        i for i in range(start + 1, len(lines)) if re.match(r" {0,4}\S", lines[i]) and i > start + 1
    )
    while not lines[end - 1].strip():
        end -= 1
    return "".join([*lines[:end], *(f"        {line}\n" for line in added), *lines[end:]])
