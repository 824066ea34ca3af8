"""Wheel files and folders as releases."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from kvpatch.outcome import KvpatchError
from kvpatch.sources import local_release
from small_index import wheel_bytes


def checkout(root: Path, version: str = "__version__ = '0.40.0'\n", package: str = "vllm") -> Path:
    (root / package).mkdir(parents=True)
    (root / package / "__init__.py").write_text("")
    (root / package / "_version.py").write_text(version)
    return root


def test_a_folder_says_its_version_in_its_sources(tmp_path: Path) -> None:
    root = checkout(tmp_path / "a", "__version__ = version = '0.40.1.dev3+gabc'\n")
    (root / "vllm" / "_C.abi3.so").write_bytes(b"")
    (root / "vllm" / "space").mkdir()
    found = local_release(root)
    assert (found.package, str(found.version), found.key) == ("vllm", "0.40.1.dev3+gabc", None)
    assert found.holder.read("vllm/__init__.py") == b""
    assert found.holder.read("vllm/gone.py") is None
    assert found.holder.read("vllm") is None
    modules = ("vllm._C", "vllm.space", "vllm.gone")
    assert [found.holder.opaque(name) for name in modules] == [True, True, False]


def test_an_unpacked_wheel_says_it_in_its_dist_info(tmp_path: Path) -> None:
    root = checkout(tmp_path / "a", "", "lmcache")
    (root / "lmcache-0.5.6.dist-info").mkdir()
    assert str(local_release(root).version) == "0.5.6"


def test_a_wheel_is_read_member_by_member(tmp_path: Path) -> None:
    path = tmp_path / "lmcache-0.5.6-py3-none-any.whl"
    path.write_bytes(wheel_bytes("lmcache", "0.5.6"))
    found = local_release(path)
    assert (found.package, str(found.version), len(found.key or "")) == ("lmcache", "0.5.6", 64)
    assert b"LMCacheConnectorV1Impl" in (
        found.holder.read("lmcache/integration/vllm/vllm_v1_adapter.py") or b""
    )
    assert found.holder.read("lmcache/gone.py") is None
    assert found.holder.opaque("lmcache.big")


def damaged() -> bytes:
    data = bytearray(wheel_bytes("vllm", "0.40.0"))
    start = data.index(b"gpu_worker.py") + 13
    data[start : start + 40] = bytes(40)
    return bytes(data)


def test_a_damaged_member_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.40.0-py3-none-any.whl"
    path.write_bytes(damaged())
    with pytest.raises(KvpatchError, match=r"gpu_worker\.py is damaged"):
        local_release(path).holder.read("vllm/v1/worker/gpu_worker.py")


def both() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("vllm/a.py", "")
        archive.writestr("lmcache/a.py", "")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("vllm-0.40.0-py3-none-any.whl", b"no zip", "it is not a wheel"),
        ("vllm.whl", wheel_bytes("vllm", "1"), "Invalid wheel filename"),
        ("pair-1.0-py3-none-any.whl", both(), "it holds vllm and lmcache"),
        (None, b"", "there is no such file"),
    ],
)
def test_what_is_no_release_is_refused(
    tmp_path: Path, name: str | None, content: bytes, why: str
) -> None:
    path = tmp_path / (name or "gone")
    if name:
        path.write_bytes(content)
    with pytest.raises(KvpatchError, match=why) as caught:
        local_release(path)
    assert (caught.value.code, int(caught.value.exit_code)) == ("bad-source", 4)


def test_folders_without_a_package_or_a_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(KvpatchError, match="neither vllm nor lmcache"):
        local_release(tmp_path / "empty")
    with pytest.raises(KvpatchError, match="which release of vllm"):
        local_release(checkout(tmp_path / "b", "__version__ = 'unknown'\n"))
