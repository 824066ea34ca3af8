from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from kvpatch.record import FileState, Record, verify
from sites import record_line

WORKER = "vllm/v1/worker/gpu_worker.py"
DATA = b"class Worker:\n    pass\n"
HEX = hashlib.sha256(DATA).hexdigest()
LINE = record_line(WORKER, DATA)


def test_a_hash_is_given_as_lowercase_hexadecimal() -> None:
    assert Record.parse(LINE).hash_of(WORKER) == HEX


@pytest.mark.parametrize(
    "text",
    [
        LINE.replace("\n", "\r\n"),
        LINE.rstrip("\n"),
        "\n\n" + LINE + "\n\n",
        "garbage\n,,,,,\n\x00\x01,\n" + LINE + 'a,"b\n',
        f'"{WORKER}","{LINE.split(",")[1]}","{len(DATA)}"\r\n',
        "./" + LINE,
        "other.py,sha256=AAAA,1\n" + LINE + WORKER + "c,sha256=AAAA,1\n",
        LINE.replace(f",{len(DATA)}", "=,"),
        LINE + LINE,
    ],
    ids=["crlf", "no-end", "blank", "garbage", "quoted", "dot", "between", "padded", "twice"],
)
def test_odd_but_readable_records_give_the_hash(text: str) -> None:
    assert Record.parse(text).hash_of(WORKER) == HEX


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
@pytest.mark.parametrize("start", ["", "./"])
def test_whatever_the_format_of_wheels_allows_proves_what_a_file_is(
    algorithm: str, start: str
) -> None:
    digest = urlsafe_b64encode(hashlib.new(algorithm, DATA).digest()).rstrip(b"=").decode()
    for path in (f"{start}{WORKER}", f'"{start}{WORKER}"'):
        record = Record.parse(f"{path},{algorithm}={digest},{len(DATA)}\n")
        assert (record.fits(WORKER, DATA), record.fits(WORKER, b"")) == (True, False)
        assert record.hash_of(WORKER) == hashlib.new(algorithm, DATA).hexdigest()
    weak = Record.parse(f"{WORKER},sha1={digest},{len(DATA)}\n")
    assert weak.fits(WORKER, DATA) is None


def test_a_path_with_comma_and_quotes_is_found_in_its_quoted_form() -> None:
    line = record_line('"a,""b"".py"', DATA)
    assert Record.parse(line).hash_of('a,"b".py') == HEX


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{WORKER},,\n",
        LINE.replace("sha256=", "md5="),
        f"{WORKER},sha256=AAAA,3\n",
        f"{WORKER},sha256=\u00e4,3\n",
        LINE + f"{WORKER},sha256={'A' * 43},3\n",
        f"x/{LINE}",
        f"{WORKER}\n",
    ],
    ids=["empty", "no-hash", "md5", "short", "not-ascii", "disagree", "other-folder", "no-fields"],
)
def test_what_proves_nothing_gives_no_hash(text: str) -> None:
    assert Record.parse(text).hash_of(WORKER) is None


def test_a_file_listed_without_a_hash_is_still_listed() -> None:
    record = Record.parse(f"{WORKER},,\n")
    assert record.lists(WORKER)
    assert not record.lists("vllm/other.py")


@pytest.mark.parametrize("path", ["../../bin/vllm", "/etc/passwd", "vllm/../x.py", ""])
def test_paths_that_leave_the_site_folder_have_no_hash(path: str) -> None:
    record = Record.parse(record_line(path, DATA))
    assert record.hash_of(path) is None
    assert not record.lists(path)


def test_the_digest_is_that_of_the_bytes_on_disk(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + LINE.replace("\n", "\r\n").encode() + b"\xff.py,,\r\n"
    (tmp_path / "RECORD").write_bytes(data)
    record = Record.load(tmp_path)
    assert record.digest == hashlib.sha256(data).hexdigest()
    assert record.hash_of(WORKER) == HEX
    assert record.problem is None


def test_without_record_there_is_no_hash_and_a_sentence_why(tmp_path: Path) -> None:
    record = Record.load(tmp_path)
    assert (record.digest, record.hash_of(WORKER)) == (None, None)
    assert str(tmp_path) in str(record.problem)


def test_without_a_metadata_folder_there_is_no_hash_and_a_sentence_why() -> None:
    record = Record.load(None)
    assert record.digest is None
    assert "no installed distribution" in str(record.problem)


def test_a_record_that_is_a_folder_is_named_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "RECORD").mkdir()
    assert "can't be read" in str(Record.load(tmp_path).problem)


def test_each_file_is_judged_by_its_content(tmp_path: Path) -> None:
    names = ("same.py", "edited.py", "new.py", "gone.py", "folder.py", "linked.py", "below/x.py")
    listed = (name for name in names if name != "new.py")
    record = Record.parse("".join(record_line(name, DATA) for name in listed))
    (tmp_path / "same.py").write_bytes(DATA)
    (tmp_path / "edited.py").write_bytes(DATA + b"\n")
    (tmp_path / "new.py").write_bytes(DATA)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "linked.py").symlink_to(tmp_path / "same.py")
    (tmp_path / "below").write_bytes(b"")
    assert verify(tmp_path, record, names) == {
        "same.py": FileState.PRISTINE,
        "edited.py": FileState.CHANGED,
        "new.py": FileState.UNLISTED,
        "gone.py": FileState.MISSING,
        "folder.py": FileState.NO_FILE,
        "linked.py": FileState.PRISTINE,
        "below/x.py": FileState.MISSING,
    }


def test_files_that_are_listed_and_gone_are_told_by_package_and_ending(tmp_path: Path) -> None:
    names = ("a/x.so", "a/y.so", "a/z.py", "b/x.so")
    record = Record.parse("".join(f"{name},,\n" for name in ("./a/w.so", *names)))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "y.so").touch()
    assert list(record.missing(tmp_path, "a", (".so",))) == ["a/w.so", "a/x.so"]
    assert list(record.missing(tmp_path, "a", (".py",))) == ["a/z.py"]
