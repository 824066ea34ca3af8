from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch import smoke_cufile
from kvpatch.smoke_cufile import CuFile


def test_what_is_written_at_an_offset_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(b"head")
    source = ctypes.create_string_buffer(b"xxkeys and values", 17)
    with CuFile(str(path), "r+") as file:
        assert file.write(ctypes.c_void_p(ctypes.addressof(source)), 15, 4, dev_offset=2) == 15
    assert path.read_bytes() == b"headkeys and values"
    target = ctypes.create_string_buffer(20)
    with CuFile(str(path), "r", use_direct_io=True) as file:
        assert file.read(ctypes.addressof(target), 15, file_offset=4, dev_offset=3) == 15
    assert target.raw[3:18] == b"keys and values"


def test_a_file_that_is_too_short_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    target = ctypes.create_string_buffer(8)
    with CuFile(str(path)) as file:
        assert file.read(ctypes.addressof(target), 8) == 3


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), CuFile(str(tmp_path / "none")):
        pass


def test_installed_it_is_what_lmcache_imports() -> None:
    folder = Path(smoke_cufile.__file__).parent
    code = (
        "import smoke_cufile; smoke_cufile.install()\n"
        "import cufile\n"
        "from cufile.bindings import cuFileBufDeregister, cuFileBufRegister\n"
        "assert cufile.CuFileDriver() and cuFileBufRegister(0, 1, flags=0) is None\n"
        "print(cufile.CuFile is smoke_cufile.CuFile)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
