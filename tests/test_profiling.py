"""``kvpatch profiles`` and ``kvpatch profile`` as they are typed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import kvpatch
from kvpatch import model_fit
from kvpatch.probe import Answer
from kvpatch.templates import Pair, load, names
from kvpatch.vllm_options import default_utilization
from packaging.version import Version
from test_field_blending import site_of

pytestmark = pytest.mark.releases

PAIR = ("--vllm", "0.32.0", "--lmcache", "0.5.6")
GDS = (*PAIR, "--gds-path", "/mnt/nvme")
LAYERWISE = "use_layerwise=true"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Llama_3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def argv(*arguments: object) -> list[str]:
    ended = kvpatch("profile", *arguments, "--format", "serve", "--json")
    assert ended.code == 0, ended.out
    found: list[str] = ended.data["serve"]["argv"]
    return found


def transfer(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(words[words.index("--kv-transfer-config") + 1])
    return found


def test_all_profiles_are_listed_with_what_they_are_for() -> None:
    ended = kvpatch("profiles")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == names()
    assert {one["name"] for one in kvpatch("profiles", "--json").data["profiles"]} == set(names())


@pytest.mark.parametrize("by", ["site", "release"])
def test_what_a_bundle_says_to_run_checks_a_copy_of_it_too(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    site = site_of(tmp_path, "0.32.0", "0.5.6").relative_to(tmp_path)
    where: tuple[object, ...] = ("--site", site) if by == "site" else PAIR
    made = kvpatch("profile", "blend", *where, "--model", model, "--format", "bundle", "-o", "made")
    assert made.code == 0, made.err
    Path("made").rename("copy")
    monkeypatch.chdir(tmp_path / "copy")
    told = Path("README.md").read_text().rpartition("`kvpatch ")[2].partition("`")[0]
    words = shlex.split(told)
    checked = kvpatch(*words)
    # The files that stand in for the environment are as released.
    assert "LM060" not in checked.out
    assert ("LM043" in checked.out) is (by == "site")
    script = Path("serve.sh")
    script.write_text(script.read_text().replace("--no-enable-prefix-caching", "--max-num-seqs 4"))
    assert "LM050" not in checked.out
    assert "LM050" in kvpatch(*words).out


@pytest.mark.parametrize(
    ("name", "architecture", "code", "told"),
    [
        ("blend", "Gemma3ForConditionalGeneration", 3, "does not blend Gemma3"),
        ("blend", "LlamaForCausalLM", 2, "leaves out num_attention_heads"),
        ("cpu-offload", "Gemma3ForConditionalGeneration", 2, "leaves out num_attention_heads"),
    ],
)
def test_a_model_that_leaves_values_to_transformers_is_refused_by_its_class_first(
    tmp_path: Path, name: str, architecture: str, code: int, told: str
) -> None:
    text = {"hidden_size": 2560, "num_hidden_layers": 34}
    whole = {"architectures": [architecture], "model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    ended = kvpatch("profile", name, *PAIR, "--model", tmp_path, "--json")
    assert ended.code == code
    assert told in ended.error["message"]


def test_a_model_that_leaves_out_its_length_alone_is_taken_with_the_one_that_is_asked_for(
    tmp_path: Path,
) -> None:
    short = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps({**short, "model_type": "llama"}))
    asked = ("profile", "cpu-offload", *PAIR, "--model", tmp_path)
    hint = kvpatch(*asked, "--json").error["hint"]
    assert "--max-model-len stands in for max_position_embeddings" in hint
    assert "--python" in hint
    ended = kvpatch(*asked, "--max-model-len", "32768", "--json")
    assert (ended.code, ended.data["numbers"]["cpu_gib"]) == (0, 16)
    assert not any("max-model-len" in one for one in ended.data["warnings"])


@pytest.mark.parametrize("name", ["gds", "gds-blend", "blend", "cpu-offload"])
def test_the_numbers_come_from_the_model_with_their_formula(name: str, model: Path) -> None:
    gds = ("--gds-path", "/mnt/nvme") if name.startswith("gds") else ()
    more = ("--model", model, "--tp", "2", "--gpu-memory", "80")
    ended = kvpatch("profile", name, *PAIR, *gds, *more)
    assert ended.code == 0
    values = yaml.safe_load(ended.out)
    words = argv(name, *PAIR, *gds, *more)
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    if gds:
        # 64 KiB a token on each of two ranks, 131072 tokens.
        assert values["gds_buffer_size"] == 8192
        assert "32 layers * 2 * 4 KV heads * 128 * 2 bytes = 65536 bytes a token" in " ".join(
            line.lstrip("# ") for line in ended.out.splitlines()
        )
        assert values["gds_path"] == "/mnt/nvme/Llama-3.1-8B-tp2-lmcache0.5.6"
        share = default_utilization(Version(PAIR[1])) - 8 / 80
        assert words[words.index("--gpu-memory-utilization") + 1] == f"{share:.2f}"
    else:
        assert values["max_local_cpu_size"] == 32.0
        assert "--gpu-memory-utilization" not in words


@pytest.mark.parametrize("name", ["blend", "gds-blend"])
def test_blending_on_several_ranks_needs_a_patch(name: str) -> None:
    gds = ("--gds-path", "/mnt/nvme") if name.startswith("gds") else ()

    def needs(ranks: int) -> dict[str, list[str]]:
        made = kvpatch("profile", name, *PAIR, *gds, "--tp", str(ranks), "--json")
        assert made.code == 0
        return {one["id"]: one["patches"] for one in made.data["needs"]}

    assert needs(2).pop("ranks") == ["KV012"]
    assert "ranks" not in needs(1)
    assert "ranks" in needs(8)


def test_a_buffer_that_does_not_fit_is_refused(model: Path) -> None:
    ended = kvpatch("profile", "gds", *GDS, "--model", model, "--gpu-memory", "16")
    assert ended.code == 3
    assert "leaves vLLM nothing" in ended.err
    fits = ("--model", model, "--gpu-memory", "16", "--max-model-len", "8192")
    # One GiB of the 16, and the share is rounded down.
    share = float(argv("gds", *GDS, *fits)[-1])
    assert 0 <= default_utilization(Version(PAIR[1])) - 1 / 16 - share < 0.01


@pytest.mark.parametrize(
    ("vllm", "has", "has_not"),
    [
        ("0.11.0", "num_cpu_blocks", "--kv-offloading-size"),
        ("0.13.0", "num_cpu_blocks", "--kv-offloading-size"),
        ("0.14.0", "--kv-offloading-size", "num_cpu_blocks"),
        ("0.33.0", "--kv-offloading-size", "kv_connector"),
    ],
)
def test_native_offloading_is_written_as_each_vllm_takes_it(
    vllm: str, has: str, has_not: str
) -> None:
    words = " ".join(argv("native-offload", "--vllm", vllm))
    assert has in words
    assert has_not not in words


@pytest.mark.parametrize(
    ("vllm", "kind"),
    [("0.22.1", "fs_python"), ("0.23.0", "fs"), ("0.33.0", "fs"), ("0.21.0", None)],
)
def test_the_file_system_tier_has_each_vllms_name_for_it(vllm: str, kind: str | None) -> None:
    words = argv("native-offload", "--vllm", vllm, "--gds-path", "/mnt/a")
    if kind is None:
        assert "--kv-offloading-size" in words
        return
    extra = transfer(words)["kv_connector_extra_config"]
    assert extra["spec_name"] == "TieringOffloadingSpec"
    assert extra["secondary_tiers"] == [{"type": kind, "root_dir": "/mnt/a"}]


def test_lmcaches_server_is_started_first_and_said_not_to_blend() -> None:
    for lmcache, start in (("0.5.6", "lmcache server"), ("0.4.2", "python -m lmcache.v1")):
        ended = kvpatch("profile", "mp-cache", "--vllm", "0.32.0", "--lmcache", lmcache)
        assert start in ended.out
        assert "does not blend" in ended.out
        assert ended.out.index(start) < ended.out.index("vllm serve")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("gds", "--vllm", "0.32.0", "--lmcache", "0.4.3"), "silently wrong"),
        (("native-offload", "--vllm", "0.10.2"), "no OffloadingConnector"),
        (("mp-cache", "--vllm", "0.11.0", "--lmcache", "0.5.6"), "no LMCacheMPConnector"),
        (("mp-cache", "--vllm", "0.32.0", "--lmcache", "0.3.13"), "how much memory"),
    ],
)
def test_what_nothing_can_cure_is_refused_with_the_nearest_that_can(
    arguments: tuple[str, ...], told: str
) -> None:
    ended = kvpatch("profile", *arguments)
    assert ended.code == 3
    assert ended.out == ""
    assert told in ended.err
    assert "cpu-offload" in ended.err


def test_a_model_that_lmcache_does_not_blend_is_refused_as_the_doctor_fails_it(
    tmp_path: Path,
) -> None:
    latent = {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 8, "qk_rope_head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **latent}))
    for more in ((), ("--strict",)):
        ended = kvpatch("profile", "blend", *PAIR, "--model", tmp_path, *more)
        assert (ended.code, ended.out) == (3, "")
        assert "does not blend DeepseekV3ForCausalLM; MLA" in ended.err
        assert "LlamaForCausalLM" in ended.err
    assert kvpatch("profile", "cpu-offload", *PAIR, "--model", tmp_path).code == 0


def test_a_model_in_another_dtype_is_served_in_the_one_that_is_blended(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": "float32"}))
    words = argv("blend", *PAIR, "--model", model)
    assert words[words.index("--dtype") + 1] == "bfloat16"
    assert "--dtype" not in argv("cpu-offload", *PAIR, "--model", model)
    told = kvpatch("profile", "blend", *PAIR, "--model", model, "--json").data
    assert told["numbers"]["bytes_per_token"] == 131072


def test_what_vllm_stops_at_is_warned_of(model: Path) -> None:
    more = ("--max-model-len", "999999", "--gpu-memory", "1")
    ended = kvpatch("profile", "blend", *PAIR, "--model", model, *more)
    assert ended.code == 0
    for word in ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "--gpu-memory 1 is too little"):
        assert word in ended.err
        assert word in ended.out


def test_what_is_missing_is_told_three_times_and_strict_says_no() -> None:
    ended = kvpatch("profile", "gds-blend", *GDS)
    assert ended.code == 0
    assert "KV001" in ended.out
    assert "not looked at: LMCache is told of the model" in ended.err
    strict = kvpatch("profile", "gds-blend", *GDS, "--strict", "--json")
    assert strict.code == 1
    assert {need["id"] for need in strict.data["needs"]} >= {"KV001"}
    assert kvpatch("profile", "native-offload", *PAIR, "--strict").code == 0


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("cpu-offload", "true", {"K", "pins"}),
        ("cpu-offload", "false", set()),
        ("gds", "true", {"GDS", "K"}),
        ("gds", "false", set()),
    ],
)
def test_what_is_set_to_go_layer_by_layer_needs_the_patches_for_that(
    name: str, value: str, needed: set[str]
) -> None:
    more = ("--set", f"use_layerwise={value}", "--strict", "--json")
    ended = kvpatch("profile", name, *PAIR, *more)
    assert ended.code == 1
    # What vLLM preempts needs its patch either way.
    assert {need["id"] for need in ended.data["needs"]} == {*needed, "preempted"}
    if needed:
        older = ("--vllm", "0.32.0", "--lmcache", "0.4.6")
        refused = kvpatch("profile", name, *older, "--set", f"use_layerwise={value}", "--json")
        assert (refused.code, refused.error["code"]) == (3, "no-cure")
        nearest = "0.5.4" if name == "gds" else "0.4.7"
        assert refused.error["hint"] == f"take LMCache {nearest}, or leave use_layerwise off"


def test_strict_ends_with_a_count_and_repeats_nothing() -> None:
    plain, strict = (kvpatch("profile", "gds-blend", *GDS, *m) for m in ((), ("--strict",)))
    assert strict.code == 1
    new = strict.err.removeprefix(plain.err).splitlines()
    assert new[0].endswith(f"({plain.err.count('not looked at: ')} missing)")
    assert len(new) == 2
    assert not any(line in plain.err for line in new)


@pytest.mark.parametrize("form", ["yaml", "env", "serve", "bundle"])
def test_every_text_names_the_whole_command_for_the_place(tmp_path: Path, form: str) -> None:
    place = ("--python", "/srv/a b/a long name of a folder for an environment/bin/python")
    out, named = tmp_path / "out", (*GDS, *place, "--format", form)
    ended = kvpatch("profile", "gds-blend", *named, "-o", out)
    assert ended.code == 0, ended.err
    line = f"`kvpatch apply --python '{place[1]}'`"
    assert f"first: run {line}" in ended.err
    told = kvpatch("profile", "gds-blend", *named, "-o", tmp_path / "more", "--json").data
    assert {need["hint"] for need in told["needs"]} == {f"run {line}"}
    texts = [one.read_text() for one in out.glob("*")] if form == "bundle" else [out.read_text()]
    headed = [text for text in texts if "[not known]" in text]
    assert headed
    for text in headed:
        assert text.count(line) == text.count("[not known]")
    if form != "bundle":
        printed = kvpatch("profile", "gds-blend", *named).out
        assert printed.count(line) == printed.count("[not known]") == len(told["needs"])


@pytest.mark.parametrize("form", ["yaml", "env", "serve", "bundle"])
@pytest.mark.parametrize("name", ["blend", "gds-blend"])
def test_all_that_is_made_sets_what_letter_v_needs(tmp_path: Path, name: str, form: str) -> None:
    more = ("--gds-path", "/mnt/kv") if "gds" in name else ()
    ended = kvpatch("profile", name, *PAIR, *more, "--format", form, "-o", tmp_path / "out")
    made = tmp_path / "out" / "vllm.env" if form == "bundle" else tmp_path / "out"
    lines = [line.lstrip("# ").removeprefix("export ") for line in made.read_text().splitlines()]
    assert lines.count("VLLM_USE_V2_MODEL_RUNNER=0") == 1
    start = tmp_path / "out" / "serve.sh" if form == "bundle" else made
    assert '"kv_connector_extra_config": {"use_layerwise": true}' in start.read_text()
    # Why stands with the command, once, and not on the terminal each time.
    told = " ".join(line.lstrip("# ") for line in start.read_text().splitlines())
    assert told.count("Model Runner V2") == 1
    assert "Model Runner V2" not in ended.err


@pytest.mark.parametrize("form", ["yaml", "env", "serve", "bundle"])
def test_each_line_beside_the_text_says_what_it_is(tmp_path: Path, form: str) -> None:
    more = ("--format", form, "-o", tmp_path / "out", "--max-model-len", "999999")
    ended = kvpatch("profile", "gds-blend", "--vllm", "0.32.0", "--lmcache", "0.4.7", *more)
    words = {line.split(": ")[1] for line in ended.err.splitlines()}
    assert {"note", "warning", "first", "not looked at"} <= words
    rest = words - {"note", "warning", "first", "not looked at"}
    assert all(word.startswith("wrote ") for word in rest)


def test_a_folder_below_the_given_one_is_told_in_one_line(model: Path) -> None:
    ended = kvpatch("profile", "gds-blend", *GDS, "--model", model, "--tp", "2")
    folder = yaml.safe_load(ended.out)["gds_path"]
    assert [folder in line for line in ended.err.splitlines()].count(True) == 1
    assert "below it" in " ".join(kvpatch("profile", "--help").out.split())


def test_set_changes_keys_adds_keys_and_refuses_unknown_ones() -> None:
    sets = ("--set", "chunk_size=512", "--set", "cache_policy=LFU", "--set", "extra_config.x=1")
    values = yaml.safe_load(kvpatch("profile", "cpu-offload", *PAIR, *sets).out)
    assert values["chunk_size"] == 512
    assert values["cache_policy"] == "LFU"
    assert values["extra_config"] == {"x": 1}
    for bad in ("chunksize=1", "chunk_size", "=1", "a=[", "cufile_buffer_size=1"):
        ended = kvpatch("profile", "cpu-offload", *PAIR, "--set", bad)
        assert ended.code == 2, bad


def test_a_bundle_is_a_folder_that_a_shell_and_yaml_read(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "it's $HOME"
    odd = ("--model", model, "--gds-path", "/mnt/a b")
    ended = kvpatch("profile", "gds-blend", *PAIR, *odd, "--format", "bundle", "-o", folder)
    assert ended.code == 0, ended.err
    made = {path.name for path in folder.iterdir()}
    assert made == {
        "lmcache.yaml",
        "vllm.env",
        "serve.sh",
        "vllm-gds-blend.service",
        "compose.yaml",
        "README.md",
    }
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "vllm").write_text('#!/bin/sh\nprintf "%s\\0" "$LMCACHE_CONFIG_FILE" "$@"\n')
    (fake / "vllm").chmod(0o755)
    environ = {**os.environ, "PATH": f"{fake}:{os.environ['PATH']}"}
    said = subprocess.run([folder / "serve.sh"], env=environ, capture_output=True, check=True)
    config, serve, path, *rest = said.stdout.decode().split("\0")
    assert (config, serve, path) == (str(folder / "lmcache.yaml"), "serve", str(model))
    assert "--no-enable-prefix-caching" in rest
    compose = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["vllm"]
    assert compose["command"][0] == str(model)
    assert json.loads(compose["command"][-1])["kv_connector"] == "LMCacheConnectorV1"
    assert compose["image"] == "vllm/vllm-openai:v0.32.0"
    unit = (folder / "vllm-gds-blend.service").read_text()
    assert "LimitMEMLOCK=infinity" in unit
    assert "RequiresMountsFor=" in unit
    again = kvpatch("profile", "gds-blend", *PAIR, *odd, "--format", "bundle", "-o", folder)
    assert again.code == 3
    forced = kvpatch(
        "profile", "gds-blend", *PAIR, *odd, "--format", "bundle", "-o", folder, "--force"
    )
    assert forced.code == 0


def test_the_environment_is_one_that_a_shell_reads() -> None:
    text = kvpatch("profile", "blend", *PAIR, "--format", "env").out
    script = f'set -a\n{text}\nprintf "%s" "$LMCACHE_BLEND_SPECIAL_STR"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "' # # '"
    assert all(shlex.split(line, comments=True) is not None for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nothing", *PAIR), 2),
        (("gds-blend", *PAIR, "--format", "bundle"), 2),
        (("native-offload", *PAIR, "--format", "yaml"), 2),
        (("mp-cache", *PAIR, "--set", "chunk_size=1"), 2),
        (("gds", *GDS, "--gpu-memory", "-1"), 2),
        (("gds", *GDS, "--kv-dtype", "int3"), 2),
        (("gds", *GDS, "--model", "/none"), 4),
        (("gds", *PAIR, "--gds-path", "relative"), 2),
        (("blend", *GDS), 2),
        (("gds", "--lmcache", "9.9.9"), 3),
        (("gds-blend", "--vllm", "0.8.0", "--lmcache", "0.3.3"), 3),
        (("cpu-offload", *PAIR, "-o", "/none/x.yaml"), 4),
    ],
)
def test_what_cannot_be_asked_ends_with_its_code(arguments: tuple[str, ...], code: int) -> None:
    ended = kvpatch("profile", *arguments)
    assert ended.code == code, ended.err
    if code:
        assert ended.err.startswith("kvpatch: ")
        assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("form", "name"), [("yaml", "lmcache.yaml"), ("env", "vllm.env"), ("serve", "serve.sh")]
)
@pytest.mark.parametrize("more", [(), ("--force",)])
def test_a_folder_where_a_file_is_made_is_usage_with_the_file_to_name(
    tmp_path: Path, form: str, name: str, more: tuple[str, ...]
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    pair = ("--lmcache", "0.5.6", "--vllm", "0.32.0")
    ended = kvpatch("profile", "blend", *pair, "--format", form, "-o", folder, *more)
    assert ended.code == 2
    assert f"is a folder, and --format {form} makes one file" in ended.err
    assert f"-o '{folder / name}'" in ended.err
    assert list(folder.iterdir()) == []
    assert kvpatch("profile", "blend", *pair, "--format", form, "-o", folder / name).code == 0
    assert [one.name for one in folder.iterdir()] == [name]


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_a_file_where_a_bundle_is_made_is_usage(tmp_path: Path, more: tuple[str, ...]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    pair = ("--lmcache", "0.5.6", "--vllm", "0.32.0")
    ended = kvpatch("profile", "blend", *pair, "--format", "bundle", "-o", file, *more)
    assert ended.code == 2
    assert "is a file, and a bundle is a folder of files" in ended.err
    assert file.read_text() == "mine"
    assert kvpatch("profile", "blend", *pair, "--format", "bundle", "-o", f"{file}.d").code == 0


@pytest.mark.parametrize("arguments", [("gds-blend",), ("blend",), ("gds", "--set", LAYERWISE)])
def test_a_dtype_that_the_patch_for_packed_caches_refuses_is_refused(
    arguments: tuple[str, ...],
) -> None:
    ended = kvpatch("profile", *arguments, *PAIR, "--kv-dtype", "fp8", "--json")
    assert (ended.code, ended.error["code"]) == (3, "kv-dtype")
    assert "fp8" in ended.error["message"]
    assert "auto" in ended.error["hint"]
    older = ("--vllm", "0.25.1", "--lmcache", "0.5.6")
    assert kvpatch("profile", *arguments, *older, "--kv-dtype", "fp8").code == 0
    assert kvpatch("profile", "gds", *PAIR, "--kv-dtype", "fp8").code == 0


@pytest.mark.parametrize("form", ["serve", "bundle", "yaml"])
def test_that_the_model_is_to_be_put_in_is_told_where_none_was_named(
    tmp_path: Path, model: Path, form: str
) -> None:
    ended = kvpatch("profile", "blend", *PAIR, "--format", form, "-o", tmp_path / "made")
    assert ended.code == 0
    assert "MODEL stands for the model in the command" in ended.err
    named = ("--model", model, "--format", form, "-o", tmp_path / "other")
    assert "MODEL stands" not in kvpatch("profile", "blend", *PAIR, *named).err


@pytest.mark.parametrize("name", [".", "config.json"])
def test_a_relative_model_is_served_by_its_absolute_folder(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(model)
    assert argv("blend", *PAIR, "--model", name)[2] == str(model)


def test_a_name_on_the_hub_is_told_where_it_goes() -> None:
    ended = kvpatch("profile", "blend", *PAIR, "--model", "org/name", "--json")
    assert (ended.code, ended.error["code"]) == (4, "no-model")
    assert ended.error["hint"].endswith("write a name on the hub for MODEL")


@pytest.mark.parametrize("name", ["mp-cache", "native-offload"])
def test_a_command_is_not_written_into_a_yaml_file_unless_that_is_meant(
    name: str, tmp_path: Path
) -> None:
    place, where = tmp_path / "x.yaml", ("--lmcache", "0.5.6", "--vllm", "0.32.0")
    ran = kvpatch("profile", name, "-o", place, *where)
    assert (ran.code, place.exists()) == (2, False)
    assert "has no LMCache file: all of it is in the command" in ran.err
    assert kvpatch("profile", name, "--format", "serve", "-o", place, *where).code == 0
    assert kvpatch("profile", name, "-o", tmp_path / "x.sh", *where).code == 0


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The commands of an environment, of which nothing is started."""
    found = tmp_path / "env" / "bin"
    found.mkdir(parents=True)
    for name in ("python", "vllm"):
        (found / name).write_text("#!/bin/false\n")
        (found / name).chmod(0o755)
    return found


@pytest.mark.parametrize("form", ["yaml", "serve", "env", "bundle"])
def test_the_models_tokenizer_is_asked_for_the_separator_that_is_written(
    tmp_path: Path, model: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    asked: list[tuple[object, ...]] = []

    def probed(_: str, argv: list[str], *, limit: float, python: Path) -> Answer:
        asked.append((*argv, python))
        assert limit < 100
        facts = {"tokens": [1, 2], "kept": [1, 2], "loses_first": False, "wanted": 4, "found": 4}
        return Answer({**facts, "found_in_text": 4 if argv[1] == " # #\n" else 1, "spurious": 0})

    monkeypatch.setattr(model_fit, "probe", probed)
    out = tmp_path / "out"
    named = (*PAIR, "--python", programs.parent, "--model", model, "--format", form, "-o", out)
    ended = kvpatch("profile", "blend", *named)
    assert ended.code == 0
    assert asked == [(str(model), " # # ", "whole", programs / "python")]
    told = "1 where the text is tokenized whole"
    assert told in ended.err
    files = [one.read_text() for one in out.iterdir()] if form == "bundle" else [out.read_text()]
    shown = [" ".join(one.replace("\n#", "").split()) for one in files]
    assert any(told in one for one in shown)
    assert form != "bundle" or [told in one for one in shown].count(True) >= 3
    better = ("--set", r'blend_special_str=" # #\n"', "--force")
    ended = kvpatch("profile", "blend", *named, *better)
    assert ended.code == 0
    assert "tokenized whole" not in ended.err
    assert asked[1][1] == " # #\n"
    plain = ("--model", model, "--python", programs.parent)
    assert kvpatch("profile", "cpu-offload", *PAIR, *plain).code == 0
    assert kvpatch("profile", "blend", *PAIR, *plain[:2]).code == 0
    assert len(asked) == 2


def test_a_tokenizer_that_can_not_be_asked_is_a_note_and_no_failure(
    model: Path, programs: Path
) -> None:
    more = ("--python", programs.parent, "--model", model, "--strict")
    ended = kvpatch("profile", "blend", *PAIR, *more)
    assert ended.out
    assert "note: the separator was not tried: " in ended.err
    without = kvpatch("profile", "blend", *PAIR, "--model", model, "--strict")
    assert ended.code == without.code
    assert "was not tried" not in without.err


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("cufile_buffer_size=100", "it is gds_buffer_size here (LMCache 0.4.4 renamed it)"),
        ("use_cufile=true", "it is use_gds here"),
        ("gds_io_threads=4", "it is extra_config.disk_io_threads here"),
        ("disk_io_threads=4", "--set extra_config.disk_io_threads=VALUE"),
        ("blend_recompute_ratio=0.2", "it is blend_recompute_ratios here"),
        ("chunksize=1", "the nearest is chunk_size"),
        ("zzz=1", "`kvpatch profile`"),
    ],
)
def test_a_key_of_another_release_is_told_by_the_name_that_this_one_has(
    text: str, hint: str
) -> None:
    ended = kvpatch("profile", "gds-blend", *GDS, "--set", text, "--json")
    assert (ended.code, ended.error["code"]) == (2, "unknown-key")
    assert hint in ended.error["hint"]


def test_the_folder_is_named_once_and_all_that_is_told_of_it_is_true() -> None:
    other = ("--set", "gds_path=/mnt/other")
    both = kvpatch("profile", "gds-blend", *GDS, *other, "--json")
    assert (both.code, both.error["code"]) == (2, "two-paths")
    alone = kvpatch("profile", "gds-blend", *PAIR, *other)
    assert yaml.safe_load(alone.out)["gds_path"] == "/mnt/other"
    for text in (alone.out, alone.err):
        assert "placeholder" not in text


def test_vllm_is_given_what_a_buffer_that_was_set_leaves() -> None:
    more = ("--gpu-memory", "10", "--set", "gds_buffer_size=1024")
    words = argv("gds-blend", *GDS, *more)
    share = float(words[words.index("--gpu-memory-utilization") + 1])
    assert share == pytest.approx(default_utilization(Version(PAIR[1])) - 0.1, abs=0.01)
    ended = kvpatch("profile", "gds-blend", *GDS, *more)
    assert yaml.safe_load(ended.out)["gds_buffer_size"] == 1024
    assert "less 1024 MiB" in ended.err


@pytest.mark.parametrize("form", ["yaml", "bundle"])
def test_what_is_set_is_warned_of_in_the_file_too(tmp_path: Path, form: str) -> None:
    remote = ("--set", "remote_url=fs://host:0/tmp/x", "--format", form, "-o", tmp_path / "out")
    assert kvpatch("profile", "blend", *PAIR, *remote).code == 0
    file = tmp_path / "out" / "lmcache.yaml" if form == "bundle" else tmp_path / "out"
    assert "(LM045)" in file.read_text()


@pytest.mark.parametrize(
    ("profile", "lmcache", "folder", "warned"),
    [
        ("gds", "0.3.5", "my_model", True),
        ("gds", "0.3.5", "model", False),
        ("gds", "0.3.5", None, True),
        ("gds-blend", "0.3.5", "my_model", True),
        ("gds", "0.5.6", "my_model", False),
        ("blend", "0.3.5", "my_model", False),
        ("cpu-offload", "0.3.5", None, False),
    ],
)
def test_an_underscore_is_warned_of_where_it_stops_lmcache(
    profile: str, lmcache: str, folder: str | None, warned: bool
) -> None:
    template = load(profile)
    pair = Pair(Version(lmcache), Version("0.11.0"))
    told = template.warnings(pair, None if folder is None else f"/srv/{folder}")
    assert any("underscore" in one for one in told) is warned
