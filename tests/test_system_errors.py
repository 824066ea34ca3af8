from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.system_errors import environment_error, environment_errors


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "no-space"),
        (errno.EDQUOT, "no-space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "no-permission"),
        (errno.EIO, "file-error"),
    ],
)
def test_what_the_system_refuses_has_a_code_and_a_next_step(number: int, code: str) -> None:
    with pytest.raises(KvpatchError) as caught, environment_errors():
        raise OSError(number, os.strerror(number), "/some/file")
    assert (caught.value.code, caught.value.exit_code) == (code, ExitCode.ENVIRONMENT)
    assert "/some/file" in caught.value.message
    assert caught.value.hint


def test_a_rename_that_fails_is_told_by_what_it_was_to_take_the_place_of() -> None:
    for number, code in ((errno.EBUSY, "mounted"), (errno.EXDEV, "file-error")):
        error = environment_error(OSError(number, os.strerror(number), "/x/.new", None, "/x/file"))
        assert (error.code, error.exit_code) == (code, ExitCode.ENVIRONMENT)
        assert error.message.startswith("/x/file: ")
    assert "take the mount away" in environment_error(OSError(errno.EBUSY, "", "/x")).hint


def test_a_working_folder_that_is_gone_is_told_from_a_file_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    assert environment_error(nameless).code == "file-error"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    error = environment_error(nameless)
    assert (error.code, error.exit_code) == ("no-folder", ExitCode.ENVIRONMENT)
    named = OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/x")
    assert environment_error(named).message == "/x: No such file or directory"


def test_too_little_memory_names_no_file() -> None:
    error = environment_error(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "/x"))
    assert (error.code, error.message) == ("no-memory", "there is not enough memory")
