"""The command that starts vLLM, for every release's own flags."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest
from commands import kvpatch
from kvpatch.outcome import KvpatchError
from kvpatch.serving import Serve, quoted, serving, shell
from kvpatch.sizing import Wanted, numbers
from kvpatch.templates import Pair, load
from kvpatch.vllm_options import default_utilization
from packaging.version import Version


def serve(profile: str, vllm: str | None, lmcache: str = "0.5.6", **more: Any) -> Serve:
    folder, extra = more.pop("folder", None), more.pop("extra", None)
    wanted = Wanted(**more)
    pair = Pair(Version(lmcache), Version(vllm) if vllm else None)
    template = load(profile)
    made = numbers(wanted, gds=template.gds, vllm=pair.vllm)
    return serving(template, pair, wanted, made, config="/etc/l.yaml", folder=folder, extra=extra)


def transfer(found: Serve) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(found.argv[found.argv.index("--kv-transfer-config") + 1])
    return data


@pytest.mark.parametrize("profile", ["blend", "gds-blend", "gds", "cpu-offload"])
@pytest.mark.parametrize(("vllm", "bare"), [("0.16.0", False), ("0.17.0", True), ("0.33.0", True)])
def test_letter_v_is_met_by_the_bare_setting_where_vllm_reads_it(
    profile: str, vllm: str, bare: bool
) -> None:
    found = serve(profile, vllm)
    extra = transfer(found).get("kv_connector_extra_config")
    assert extra == ({"use_layerwise": True} if bare else None)
    blends = load(profile).blends
    assert ("--no-enable-prefix-caching" in found.argv) is blends
    assert ("--enforce-eager" in found.argv) is (blends and not bare)


def test_layer_by_layer_without_blending_is_served_without_full_graphs() -> None:
    for vllm, eager in (("0.16.0", True), ("0.17.0", False)):
        pair = Pair(Version("0.5.6"), Version(vllm), by_layer=True)
        template, wanted = load("cpu-offload"), Wanted()
        made = numbers(wanted, gds=False, vllm=pair.vllm)
        found = serving(template, pair, wanted, made, config="/etc/l.yaml")
        assert ("--enforce-eager" in found.argv) is eager
        assert ("kv_connector_extra_config" in transfer(found)) is not eager
        assert "--no-enable-prefix-caching" not in found.argv


@pytest.mark.parametrize(
    ("profile", "vllm", "lmcache", "sparse", "backend"),
    [
        ("blend", "0.12.0", "0.5.6", False, "FLASH_ATTN"),
        ("gds-blend", "0.13.0", "0.5.6", False, "FLASH_ATTN"),
        ("blend", None, "0.5.6", False, "FLASH_ATTN"),
        ("blend", "0.13.0", "0.4.4", True, "FLASHINFER"),
        ("blend", "0.13.0", "0.4.5", True, None),
        ("cpu-offload", "0.12.0", "0.5.6", False, None),
        ("gds", "0.13.0", "0.5.6", False, None),
    ],
)
def test_the_back_end_is_the_one_that_lmcache_blends_with(
    profile: str, vllm: str | None, lmcache: str, sparse: bool, backend: str | None
) -> None:
    found = serve(profile, vllm, lmcache, extra={"enable_sparse": True} if sparse else None)
    option = "--attention-backend"
    given = found.argv[found.argv.index(option) + 1] if option in found.argv else None
    newer = vllm == "0.13.0"
    assert given == (backend if newer else None)
    assert found.environ.get("VLLM_ATTENTION_BACKEND") == (None if newer else backend)
    assert (f"{backend} is the one attention back end" in found.why) is (backend is not None)


def test_the_key_that_vllm_does_not_see_is_named_with_where_it_stands() -> None:
    assert "does not see `use_layerwise` in LMCache's file" in serve("blend", "0.32.0").why


@pytest.mark.parametrize(("longest", "tokens"), [(None, 32768), (8192, 8192)])
def test_sizes_of_no_model_of_the_users_are_told_as_such(longest: int | None, tokens: int) -> None:
    (note,) = serve("cpu-offload", "0.32.0", longest=longest).notes
    assert f"Sizes are those of Llama-3.1-8B with prompts of {tokens} tokens" in note


def test_workers_get_the_file_and_the_seed() -> None:
    found = serve("gds-blend", "0.32.0")
    named = {"LMCACHE_CONFIG_FILE": "/etc/l.yaml", "PYTHONHASHSEED": "0"}
    assert found.environ == {**named, "VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert serve("gds-blend", "0.21.0").environ == named


@pytest.mark.parametrize(
    ("vllm", "models"),
    [
        ("0.21.0", ""),
        ("0.22.0", "Qwen3"),
        ("0.25.0", "Qwen3, Llama, Qwen2"),
        ("0.32.0", "all models"),
    ],
)
@pytest.mark.parametrize("profile", ["blend", "gds-blend", "gds", "cpu-offload"])
def test_the_older_model_runner_is_set_where_the_other_is_the_default_and_said_once(
    profile: str, vllm: str, models: str
) -> None:
    found = serve(profile, vllm)
    assert found.environ.get("VLLM_USE_V2_MODEL_RUNNER") == ("0" if models else None)
    assert not any("Model Runner V2" in note for note in found.notes)
    why = f"(letter V): vLLM {vllm} would take Model Runner V2 for {models}, and with full CUDA"
    assert found.why.count("VLLM_USE_V2_MODEL_RUNNER=0") == found.why.count(why) == bool(models)


@pytest.mark.parametrize("profile", ["mp-cache", "native-offload"])
def test_without_lmcaches_connector_the_runner_is_left_alone(profile: str) -> None:
    assert "VLLM_USE_V2_MODEL_RUNNER" not in serve(profile, "0.32.0").environ


@pytest.mark.parametrize(
    ("vllm", "blocks", "size"),
    [("0.11.0", True, False), ("0.13.0", True, False), ("0.14.0", False, True)],
)
def test_native_offloading_has_no_flags_that_are_broken(
    vllm: str, blocks: bool, size: bool
) -> None:
    found = serve("native-offload", vllm)
    assert ("--kv-offloading-size" in found.argv) is size
    assert ("--kv-transfer-config" in found.argv) is blocks
    if blocks:
        assert transfer(found)["kv_connector_extra_config"]["num_cpu_blocks"] > 0


@pytest.mark.parametrize(
    ("vllm", "kind", "direct"),
    [("0.22.0", "fs_python", True), ("0.26.0", "fs", True), ("0.27.0", "fs", False)],
)
def test_the_file_system_tier_has_its_name_and_its_condition(
    vllm: str, kind: str, direct: bool
) -> None:
    found = serve("native-offload", vllm, folder="/mnt/x")
    (tier,) = transfer(found)["kv_connector_extra_config"]["secondary_tiers"]
    assert tier == {"type": kind, "root_dir": "/mnt/x"}
    assert any("O_DIRECT" in note for note in found.notes) is direct


def test_native_offloading_without_a_release_is_refused() -> None:
    with pytest.raises(KvpatchError, match="hangs on the release of vLLM"):
        serve("native-offload", None)


@pytest.mark.parametrize(("lmcache", "word"), [("0.4.2", "python"), ("0.4.3", "lmcache")])
def test_the_server_is_started_as_its_release_has_it(lmcache: str, word: str) -> None:
    found = serve("mp-cache", "0.32.0", lmcache)
    assert found.server[0] == word
    assert transfer(found)["kv_connector"] == "LMCacheMPConnector"


def test_the_share_of_the_gpu_is_a_flag_where_it_can_be_computed() -> None:
    known, unknown = serve("gds", "0.32.0", gpu_gib=80.0), serve("gds", "0.32.0")
    share = default_utilization(Version("0.32.0")) - 4 / 80
    assert known.argv[-2:] == ("--gpu-memory-utilization", f"{share:.2f}")
    assert "--gpu-memory-utilization" not in unknown.argv
    assert any("4096 MiB" in note for note in unknown.notes)


@pytest.mark.parametrize("word", ["a b", "it's", "$HOME", "\u00e4\u4e2d", "a\nb", "\\x41", ""])
@pytest.mark.parametrize("wide", [True, False])
def test_words_come_out_of_a_shell_as_they_went_in(word: str, wide: bool) -> None:
    text = shell(("printf", "%s", word), wide=wide)
    assert text.isascii()
    said = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert said.stdout.decode() == word
    if word.isascii() and word.isprintable():
        assert shlex.split(quoted(word)) == [word]


@pytest.mark.releases
@pytest.mark.parametrize("vllm", ["0.19.1", "0.20.0", "0.32.0"])
def test_the_share_is_told_by_the_default_that_lint_knows(vllm: str) -> None:
    made = kvpatch(
        *("profile", "gds-blend", "--lmcache", "0.5.6", "--vllm", vllm, "--json"),
        *("--gpu-memory", "80", "--gds-path", "/mnt/a"),
    )
    default = default_utilization(Version(vllm))
    (note,) = [one for one in made.data["notes"] if "--gpu-memory-utilization" in one]
    buffer = made.data["numbers"]["gds_buffer_mib"]
    assert f"is {default:g} less {buffer} MiB over 80 GiB" in note
    share = made.data["numbers"]["gpu_memory_utilization"]
    assert 0 <= default - buffer / 1024 / 80 - share < 0.01
