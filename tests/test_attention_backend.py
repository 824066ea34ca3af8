from __future__ import annotations

import pytest
from kvpatch.attention_backend import DROPPED, OPTION, OPTION_SINCE, VARIABLE, asked_for
from packaging.version import Version
from releases import release_file, vllm_releases


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_each_release_is_asked_by_what_it_reads(release: str) -> None:
    version = Version(release)
    reads = VARIABLE.encode() in release_file("vllm", release, "vllm/envs.py")
    assert reads is (version < DROPPED)
    arguments = release_file("vllm", release, "vllm/engine/arg_utils.py")
    assert (f'"--{OPTION}"'.encode() in arguments) is (version >= OPTION_SINCE)
    words, variables = asked_for(version, "FLASH_ATTN")
    if version >= OPTION_SINCE:
        assert (words, variables) == ((f"--{OPTION}", "FLASH_ATTN"), {})
    else:
        assert reads
        assert (words, variables) == ((), {VARIABLE: "FLASH_ATTN"})


def test_a_release_that_is_not_known_is_asked_by_the_variable() -> None:
    assert asked_for(None, "FLASH_ATTN") == ((), {VARIABLE: "FLASH_ATTN"})
