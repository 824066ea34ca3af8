"""Site folders as installers leave them, made by hand."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path


def record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def install(
    site: Path,
    distribution: str,
    version: str,
    files: Mapping[str, str],
    *,
    record: bool = True,
    top_level: str | None = None,
    editable: Path | None = None,
) -> Path:
    """Writes the files and the metadata folder of a distribution, which it returns."""
    dist_info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    dist_info.mkdir(parents=True)
    lines = ""
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(text.encode())
        lines += record_line(path, text.encode())
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nName: no\n"
    (dist_info / "METADATA").write_text(metadata)
    lines += f"{dist_info.name}/RECORD,,\n"
    if record:
        (dist_info / "RECORD").write_text(lines)
    if top_level is not None:
        (dist_info / "top_level.txt").write_text(top_level + "\n")
    if editable is not None:
        facts = {"url": editable.as_uri(), "dir_info": {"editable": True}}
        (dist_info / "direct_url.json").write_text(json.dumps(facts))
    return dist_info


VLLM = {
    "vllm/__init__.py": "raise SystemExit('vllm was imported')\n",
    "vllm/_version.py": "__version__ = version = '0.11.1'\n",
    "vllm/v1/worker/gpu_worker.py": "class Worker:\n    pass\n",
}
LMCACHE = {"lmcache/__init__.py": "raise SystemExit('lmcache was imported')\n"}
