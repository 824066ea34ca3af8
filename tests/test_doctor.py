"""``kvpatch doctor`` on environments made for it, and on this host's own /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Ran, kvpatch
from fake_site import LATE, WORKER, install
from kvpatch.templates import load, names
from lmcache_config import files_of
from test_field_blending import site_of

pytestmark = pytest.mark.releases


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site folder with LMCache's real configuration code and a worker in vLLM's shape."""
    folder = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    install(folder, "vllm", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    files = {path: content.decode() for path, content in files_of("0.5.6").items()}
    models = 'def of(name):\n    return name in ("LlamaForCausalLM", "Qwen3ForCausalLM")\n'
    files |= {"lmcache/__init__.py": "", "lmcache/v1/compute/models/utils.py": models}
    install(folder, "lmcache", "0.5.6", files)
    return folder


def rows(ended: Ran) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in ended.data["checks"]}


def test_a_host_that_lacks_things_is_told_what_to_do(site: Path, tmp_path: Path) -> None:
    gds = tmp_path / "gds"
    gds.mkdir()
    ended = kvpatch("doctor", "--site", site, "--profile", "gds-blend", "--gds-path", gds, "--json")
    assert ended.code == 1
    found = rows(ended)
    assert found["patches"]["state"] == "fail"
    # The LMCache of this site is not whole, so apply is no way out.
    told = "`kvpatch apply` refuses here: KV003 is missing: "
    assert found["patches"]["todo"].startswith(told)
    sent = [name for name, row in found.items() if row["todo"].startswith(told)]
    assert sent == ["patches", "LM041 gds_path"]
    assert found["pair"]["state"] == "ok"
    assert found["gds access"]["state"] in ("ok", "fail")
    assert found["gds mount"]["state"] in ("ok", "warn", "fail")
    assert found["model runner"]["state"] == "warn"
    assert found["LMCache's extension"]["state"] == "not checked"
    assert list(gds.iterdir()) == []
    for check in found.values():
        assert check["reason"]
        assert check["todo"] or check["state"] in ("ok", "not checked")


def test_a_host_that_lacks_patches_alone_is_sent_to_apply(tmp_path: Path) -> None:
    folder = site_of(tmp_path, "0.32.0", "0.5.6")
    found = rows(kvpatch("doctor", "--site", folder, "--json"))
    assert found["pair"]["state"] == "ok"
    assert found["patches"]["state"] == "fail"
    assert found["patches"]["todo"] == "run `kvpatch apply`"


def test_a_configuration_that_goes_layer_by_layer_is_sent_to_apply_without_blending(
    tmp_path: Path,
) -> None:
    folder = site_of(tmp_path, "0.32.0", "0.5.6")
    config = tmp_path / "lmcache.yaml"
    for text, layers in (("use_layerwise: true\n", True), ("chunk_size: 256\n", False)):
        config.write_text(text)
        ended = kvpatch("doctor", "--site", folder, "--config", config, "--no-write", "--json")
        row = rows(ended)["patches"]
        assert row["state"] == "fail"
        assert ("KV006" in row["reason"]) is layers
        # For requests that vLLM preempts.
        assert "KV016" in row["reason"]
        assert "KV001" not in row["reason"]


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
}


@pytest.mark.parametrize("name", names())
def test_a_profile_is_judged_by_what_it_needs(tmp_path: Path, name: str) -> None:
    folder, template = site_of(tmp_path, "0.32.0", "0.5.6"), load(name)
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    more = ("--profile", name, "--model", tmp_path, "--json")
    ended = kvpatch("doctor", "--site", folder, *more)
    judged = [check for check in ended.data["checks"] if check["group"] in ("pair", "model")]
    # transformers is not installed there, whatever the profile is.
    failed = {check["name"] for check in judged if check["state"] == "fail"} - {"transformers"}
    strict = kvpatch("profile", name, "--site", folder, "--strict", "--json")
    assert ("patches" in failed) is (strict.code == 1)
    assert failed.issuperset({"model", "rope"}) is template.blends
    # The profile's own command has the flag.
    assert (rows(ended).get("dtype", {}).get("state") == "warn") is template.blends
    assert failed <= {"patches"} or template.blends
    assert (rows(ended)["model runner"]["state"] == "warn") is (template.kind == "lmcache")
    assert "LMCache None" not in ended.out


@pytest.mark.parametrize("vllm", ["0.32.0", "0.11.0"])
@pytest.mark.parametrize("name", names())
def test_a_process_that_a_profile_started_is_fine_but_for_patches(
    tmp_path: Path, name: str, vllm: str
) -> None:
    lmcache = {"0.32.0": "0.5.6", "0.11.0": "0.3.9.post2"}[vllm]
    folder, template = site_of(tmp_path, vllm, lmcache), load(name)
    model = {**MOE, "architectures": ["LlamaForCausalLM"], "rope_scaling": None}
    (tmp_path / "config.json").write_text(json.dumps(model))
    storage = tmp_path / "storage"
    output = ("-o", tmp_path / "lmcache.yaml") if template.kind == "lmcache" else ()
    gds = ("--gds-path", storage) if template.gds else ()
    asked = ("--model", tmp_path, "--max-model-len", "64", "--tp", "2", *gds, *output, "--json")
    made = kvpatch("profile", name, "--site", folder, *asked)
    if made.code == 3:
        assert vllm == "0.11.0"
        return
    if template.gds:
        Path(yaml.safe_load(made.data["yaml"])["gds_path"]).mkdir(parents=True)
    serve = made.data["serve"]
    process = subprocess.Popen(
        [sys.executable, "-c", "input()", *serve["argv"]],
        stdin=subprocess.PIPE,
        env={**os.environ, **serve["environ"]},
    )
    more = ("--pid", process.pid, "--model", tmp_path, "--no-write", "--json")
    try:
        ended = kvpatch("doctor", "--site", folder, *more)
    finally:
        process.communicate(b"\n")
    found = [one for one in ended.data["checks"] if one["group"] != "GDS"]
    # What this site lacks, and what of the pair needs another.
    lacks = {"patches", "transformers", "LM041 gds_path", "LM070", "catalogue"}
    bad = {one["name"] for one in found if one["state"] in ("fail", "warn")} - lacks
    old = (
        {"LM038 pre_caching_hash_algorithm"} if vllm == "0.11.0" and not template.blends else set()
    )
    assert bad <= old, ended.out
    assert rows(ended).get("dtype", {}).get("state", "ok") == "ok"


@pytest.mark.parametrize(("tokens", "state"), [(4096, "ok"), (10**9, "warn")])
def test_the_room_on_storage_is_held_against_the_prompts_of_the_model(
    site: Path, tmp_path: Path, tokens: int, state: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MOE, "max_position_embeddings": tokens}))
    more = ("--gds-path", tmp_path, "--model", tmp_path, "--json")
    for asked in ((), ("--profile", "gds-blend")):
        found = rows(kvpatch("doctor", "--site", site, *asked, *more))
        assert found["gds space"]["state"] == state


def test_every_row_about_the_pair_names_the_same_release(tmp_path: Path) -> None:
    folder = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    install(folder, "vllm", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    files = {path: content.decode() for path, content in files_of("0.3.7").items()}
    install(folder, "lmcache", "0.3.7", {**files, "lmcache/__init__.py": ""})
    config = tmp_path / "lmcache.yaml"
    config.write_text("enable_blending: true\nuse_layerwise: true\n")
    found = rows(kvpatch("doctor", "--site", folder, "--config", config, "--json"))
    assert (found["pair"]["state"], found["catalogue"]["state"]) == ("fail", "fail")
    told = [found[name]["todo"].replace(",", " ").split()[:3] for name in ("pair", "catalogue")]
    assert told[0] == told[1] == ["take", "LMCache", "0.4.7"]
    refused = kvpatch("profile", "blend", "--site", folder)
    assert refused.code == 3
    assert "take LMCache 0.4.7" in refused.err
    assert "take LMCache 0.4.7" in kvpatch("lint", config, "--site", folder).out


def test_a_configuration_is_linted_and_its_model_looked_at(site: Path, tmp_path: Path) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text(
        "enable_blending: true\ncufile_buffer_size: 1\nblend_recompute_ratios: [15]\n"
    )
    model = tmp_path / "config.json"
    model.write_text(
        '{"architectures": ["MistralForCausalLM"], "num_hidden_layers": 2, "hidden_size": 8, '
        '"num_attention_heads": 2, "max_position_embeddings": 8, "torch_dtype": "bfloat16"}'
    )
    ended = kvpatch("doctor", "--site", site, "--config", config, "--model", model, "--json")
    found = rows(ended)
    assert found["LM010 cufile_buffer_size"]["state"] == "fail"
    assert found["LM027 blend_recompute_ratios"]["state"] == "fail"
    assert found["model"]["todo"] == "take one of: LlamaForCausalLM, Qwen3ForCausalLM"
    assert found["separator"]["state"] == "not checked"


def test_a_model_that_leaves_values_out_is_judged_by_its_class_in_a_whole_report(
    site: Path, tmp_path: Path
) -> None:
    config = {"architectures": ["Gemma3"], "model_type": "gemma3", "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ended = kvpatch("doctor", "--site", site, "--model", tmp_path, "--json")
    found = rows(ended)
    assert (ended.code, found["model"]["state"]) == (1, "fail")
    assert "does not blend Gemma3" in found["model"]["reason"]
    assert found["config.json"]["state"] == found["separator"]["state"] == "not checked"
    for name in ("native-offload", "cpu-offload"):
        more = ("--profile", name, "--model", tmp_path, "--json")
        found = rows(kvpatch("doctor", "--site", site, *more))
        assert found["config.json"]["state"] == "not checked"
        assert "model" not in found


def test_a_running_process_tells_what_its_variables_and_flags_are(
    site: Path, tmp_path: Path
) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("gds_path: /mnt/a\ngds_buffer_size: 64\n")
    flags = ["serve", "m", "--kv-transfer-config", '{"kv_role": "kv_both"}']
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *flags],
        stdin=subprocess.PIPE,
        env={**os.environ, "LMCACHE_CHUNKSIZE": "1"},
    )
    try:
        ended = kvpatch(
            "doctor", "--site", site, "--config", config, "--pid", process.pid, "--json"
        )
    finally:
        process.communicate()
    found = rows(ended)
    assert found["environment"]["state"] == "ok"
    assert "not exported" in found["LM060 LMCACHE_CONFIG_FILE"]["reason"]
    assert found["LM062 LMCACHE_CHUNKSIZE"]["state"] == "fail"
    assert found["LM052"]["state"] == "fail"
    assert found["LM038 gds_path"]["state"] == "fail"


def test_of_a_process_whose_connector_reads_no_file_none_is_missing(site: Path) -> None:
    transfer = '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}'
    process = subprocess.Popen(
        [sys.executable, "-c", "input()", "vllm", "serve", "m", "--kv-transfer-config", transfer],
        stdin=subprocess.PIPE,
    )
    try:
        ended = kvpatch("doctor", "--site", site, "--pid", process.pid, "--json")
    finally:
        process.communicate(b"\n")
    found = {name: row for name, row in rows(ended).items() if row["group"] == "configuration"}
    assert set(found) == {"file", "environment"}
    assert found["file"]["state"] == "not checked"
    assert "LMCacheMPConnector keeps vLLM's chunks" in found["file"]["reason"]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (("vllm", "serve", "m"), {"LMCACHE_ENABLE_BLENDING": "true"}),
        (("vllm", "serve", "m"), {"LMCACHE_CONFIG_FILE": "FILE", "LMCACHE_CHUNK_SIZE": "512"}),
        (("vllm", "serve", "m", "--no-enable-prefix-caching"), {"LMCACHE_CONFIG_FILE": "FILE"}),
        (("-m", "vllm.entrypoints.openai.api_server", "--model", "m"), {}),
        # A script's own --model says nothing of the connector.
        (("--model", "m"), {"LMCACHE_ENABLE_BLENDING": "true"}),
    ],
)
def test_lint_and_doctor_say_the_same_of_the_same_process(
    site: Path, tmp_path: Path, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("enable_blending: true\nchunk_size: 256\n")
    given = {name: value.replace("FILE", str(config)) for name, value in environ.items()}
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *words],
        stdin=subprocess.PIPE,
        env={**os.environ, **given},
    )
    try:
        more = ("--site", site, "--pid", process.pid, "--json")
        linted, seen = kvpatch("lint", *more), kvpatch("doctor", *more)
    finally:
        process.communicate()
    said = {
        (f"{one['rule']} {one['key']}".strip(), one["level"])
        for one in linted.data["findings"]
        # The doctor has a row of its own for the patches.
        if one["rule"] != "LM043"
    }
    levels = {"fail": "error", "warn": "warning", "note": "note", "not checked": "note"}
    rows_of = [one for one in seen.data["checks"] if one["name"].startswith("LM")]
    assert {(one["name"], levels[one["state"]]) for one in rows_of if one["name"][2].isdigit()} == (
        said
    )
    assert ("LM052" in {name for name, _ in said}) is (words[0] != "--model")
    assert linted.code == int(any(level == "error" for _, level in said))


@pytest.mark.parametrize(
    ("named", "told"), [(False, "takes its defaults"), (True, "was changed after the process")]
)
def test_a_process_that_has_no_configuration_or_an_older_one_is_not_called_fine(
    site: Path, tmp_path: Path, named: bool, told: str
) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("chunk_size: 256\n")
    os.utime(config, (2**32, 2**32))
    transfer = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
    words = ("vllm", "serve", "m", "--kv-transfer-config", transfer)
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *words],
        stdin=subprocess.PIPE,
        env={**os.environ, **({"LMCACHE_CONFIG_FILE": str(config)} if named else {})},
    )
    more = ("--site", site, "--pid", process.pid, "--json")
    try:
        linted, seen = kvpatch("lint", *more), kvpatch("doctor", *more)
    finally:
        process.communicate()
    (found,) = [one for one in linted.data["findings"] if one["rule"] == "LM060"]
    assert (found["level"], told in found["message"]) == ("warning", True)
    there = rows(seen)
    assert there["LM060 LMCACHE_CONFIG_FILE"]["state"] == "warn"
    assert not {"file", "variables"} & {name for name, one in there.items() if one["state"] == "ok"}


def test_the_table_has_every_check_and_their_count(site: Path) -> None:
    ended = kvpatch("doctor", "--site", site)
    assert ended.code == 1
    assert ended.out.splitlines()[0].startswith("vLLM 0.32.0 with LMCache 0.5.6, in ")
    assert ended.out.splitlines()[-1].endswith("not checked")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--profile", "gds", "--config", "/none"), 2),
        (("--profile", "nothing"), 2),
        (("--config", "/none"), 4),
        (("--model", "/none"), 4),
    ],
)
def test_what_cannot_be_asked_ends_with_its_code(
    site: Path, arguments: tuple[str, ...], code: int
) -> None:
    ended = kvpatch("doctor", "--site", site, *arguments)
    assert ended.code == code
    assert ended.err.startswith("kvpatch: ")


def test_without_lmcache_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert kvpatch("doctor", "--site", tmp_path).code == 4


def test_a_process_is_followed_to_the_file_that_it_was_started_with(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "lmcache.yaml").write_text("chunk_size: 256\n")
    serve = tmp_path / "serve.yaml"
    connector = "kv-transfer-config: {kv_connector: LMCacheConnectorV1, kv_role: kv_both}"
    serve.write_text(f"{connector}\n\nport: 1\nport: 2\n")
    words = ("vllm", "serve", "m", "--config", "serve.yaml")
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *words],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env={
            **os.environ,
            "LMCACHE_CONFIG_FILE": "lmcache.yaml",
            "VLLM_USE_V2_MODEL_RUNNER": "0",
        },
    )
    more = ("--site", site, "--pid", process.pid, "--json")
    try:
        seen, linted = rows(kvpatch("doctor", *more)), kvpatch("lint", *more)
        serve.unlink()
        gone = rows(kvpatch("doctor", *more))
    finally:
        process.communicate()
    assert seen["vLLM's file"]["reason"] == f"its options are read from {serve}"
    assert seen["LM002 config"]["todo"] == f"change line 4 of {serve}"
    assert [one["rule"] for one in linted.data["findings"]] == ["LM002", "LM043"]
    assert "as VLLM_USE_V2_MODEL_RUNNER says" in seen["model runner"]["reason"]
    assert linted.data["serve_config"] == str(serve)
    assert linted.data["file"] == str(tmp_path / "lmcache.yaml")
    assert "LM052" not in seen | gone
    assert gone["LM058 config"]["state"] == "warn"
    assert "vLLM's file" not in gone


def test_a_process_of_several_ranks_that_blends_is_told(site: Path, tmp_path: Path) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("enable_blending: true\nuse_layerwise: true\n")
    words = ("vllm", "serve", "m", "-tp", "2", "--pipeline-parallel-size=2", "--enable-lora")
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *words],
        stdin=subprocess.PIPE,
        env={**os.environ, "LMCACHE_CONFIG_FILE": str(config)},
    )
    try:
        found = rows(kvpatch("doctor", "--site", site, "--pid", process.pid, "--json"))
        linted = kvpatch("lint", "--site", site, "--pid", process.pid, "--json")
    finally:
        process.communicate()
    levels = {one["rule"]: one["level"] for one in linted.data["findings"]}
    assert [levels[rule] for rule in ("LM070", "LM071", "LM072")] == ["error"] * 3
    assert "KV012" in found["LM070"]["reason"]
    assert found["LM071"]["state"] == found["LM072"]["state"] == "fail"
