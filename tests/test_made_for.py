"""What a profile is made for, in an environment made for it and by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_site import LATE, WORKER, install
from kvpatch.fsops import Disk
from kvpatch.host import Where
from kvpatch.made_for import made_for
from kvpatch.outcome import KvpatchError
from kvpatch.templates import load
from lmcache_config import files_of
from packaging.version import Version

pytestmark = pytest.mark.releases

MODELS = 'def of(name):\n    return name in ("LlamaForCausalLM", "Qwen3ForCausalLM")\n'
VLLM, LMCACHE = Version("0.32.0"), Version("0.5.6")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    install(folder, "vllm", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    files = {path: content.decode() for path, content in files_of("0.5.6").items()}
    files |= {"lmcache/__init__.py": "", "lmcache/v1/compute/models/utils.py": MODELS}
    install(folder, "lmcache", "0.5.6", files)
    return folder


def test_an_installed_pair_is_looked_at_with_its_own_table_of_models(site: Path) -> None:
    found = made_for(load("blend"), Where(site=site), Disk())
    assert (found.pair.lmcache, found.pair.vllm) == (LMCACHE, VLLM)
    assert found.pair.registered is False
    assert found.taken() == ("LlamaForCausalLM", "Qwen3ForCausalLM")
    assert found.schema.has("enable_blending")


def test_another_vllm_is_not_taken_for_the_one_that_is_there(site: Path) -> None:
    found = made_for(load("blend"), Where(site=site), Disk(), vllm=Version("0.31.0"))
    assert found.pair.vllm == Version("0.31.0")
    assert found.pair.absent == ("vLLM 0.31.0",)
    assert found.pair.registered is None
    same = made_for(load("blend"), Where(site=site), Disk(), vllm=VLLM)
    assert (same.pair.absent, same.pair.registered) == ((), False)


def test_beside_a_named_lmcache_stands_the_vllm_of_the_environment(site: Path) -> None:
    where = Where(site=site)
    found = made_for(load("blend"), where, Disk(), lmcache=Version("0.5.4"))
    assert (found.pair.lmcache, found.pair.vllm) == (Version("0.5.4"), VLLM)
    assert found.pair.absent == ("LMCache 0.5.4",)
    assert found.pair.registered is None
    need = load("blend").needs(found.pair)[0]
    assert need.hint == "install LMCache 0.5.4, then run `kvpatch apply`"
    itself = made_for(load("blend"), where, Disk(), lmcache=LMCACHE)
    assert (itself.pair.absent, itself.pair.vllm, itself.pair.registered) == ((), VLLM, False)


def test_an_environment_without_either_can_be_named_for_a_release(tmp_path: Path) -> None:
    found = made_for(load("blend"), Where(site=tmp_path), Disk(), lmcache=LMCACHE)
    assert (found.pair.vllm, found.pair.absent) == (None, ("LMCache 0.5.6",))


def test_a_named_pair_needs_no_environment(tmp_path: Path) -> None:
    found = made_for(load("blend"), Where(site=tmp_path), Disk(), lmcache=LMCACHE, vllm=VLLM)
    assert (found.pair.lmcache, found.pair.registered) == (LMCACHE, None)
    assert "LlamaForCausalLM" in found.taken()
    alone = made_for(load("native-offload"), Where(site=tmp_path), Disk(), vllm=VLLM)
    assert (alone.pair.lmcache, alone.taken()) == (None, ())
    with pytest.raises(KvpatchError) as caught:
        made_for(load("blend"), Where(site=tmp_path), Disk())
    assert "or name a pair" in caught.value.hint


def test_the_programs_are_those_of_the_environment_that_was_named(tmp_path: Path) -> None:
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    (programs / "vllm").touch()
    where = Where(python=programs / "python")
    assert made_for(load("blend"), where, Disk(), lmcache=LMCACHE, vllm=VLLM).programs == programs
    assert made_for(load("blend"), Where(), Disk(), lmcache=LMCACHE, vllm=VLLM).programs is None
