"""``kvpatch lint`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import kvpatch
from kvpatch.rules import ALL
from test_profiling import LLAMA

pytestmark = pytest.mark.releases

BAD = '# c\ncufile_buffer_size: 4294967296 # b\ngds_path: /mnt/x\nenable_blending: "yes"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lmcache.yaml"
    path.write_text(BAD)
    return path


def lint(*arguments: object) -> tuple[int, str, str]:
    ended = kvpatch("lint", *arguments)
    return ended.code, ended.out, ended.err


def test_findings_are_printed_with_their_place_and_the_answer_is_no(file: Path) -> None:
    code, out, err = lint(file, "--lmcache", "0.5.6")
    assert code == 1
    assert f"{file}:2:1: error LM010 " in out
    assert "--fix would rename cufile_buffer_size to gds_buffer_size" in out
    assert err == ""


def test_the_envelope_has_findings_and_the_values_that_lmcache_will_have(file: Path) -> None:
    code, out, _ = lint(file, "--lmcache", "0.5.6", "--json")
    answer = json.loads(out)
    assert (code, answer["status"], answer["exit_code"]) == (1, "no", 1)
    assert answer["data"]["values"]["enable_blending"] == {"value": False, "source": "file"}
    assert {"rule", "level", "message", "why", "line", "fix"} <= set(answer["data"]["findings"][0])


def test_fix_mends_the_file_and_a_second_time_changes_nothing(file: Path) -> None:
    code, out, err = lint(file, "--lmcache", "0.5.6", "--fix")
    assert code == 0, out
    assert "wrote" in err
    text = file.read_text()
    assert text.startswith("# c\ngds_buffer_size: 4096")
    assert "# b\n" in text
    code, _, err = lint(file, "--lmcache", "0.5.6", "--fix")
    assert (code, err, file.read_text()) == (0, "", text)


def test_a_doubled_key_keeps_fix_from_the_file_with_the_reason(file: Path) -> None:
    file.write_text(f"{file.read_text()}chunk_size: 1\nchunk_size: 2\n")
    before = file.read_bytes()
    code, out, err = lint(file, "--lmcache", "0.5.6", "--fix")
    assert code == 3
    assert "LM002" in out
    assert "with each key there once, --fix would " in out
    assert f"{file} was left as it is: a key is there twice" in err
    assert "take out the line" in err
    assert file.read_bytes() == before
    assert lint(file, "--lmcache", "0.5.6")[0] == 1


def test_sarif_names_every_finding_at_its_line(file: Path, tmp_path: Path) -> None:
    place = tmp_path / "out.sarif"
    lint(file, "--lmcache", "0.5.6", "--sarif", place)
    log = json.loads(place.read_text())
    assert log["version"] == "2.1.0"
    (made,) = log["runs"]
    assert [rule["id"] for rule in made["tool"]["driver"]["rules"]] == [rule.id for rule in ALL]
    for result in made["results"]:
        rule = made["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        region = result["locations"][0]["physicalLocation"]["region"]
        assert region["startLine"] >= 1
    assert any(one["ruleId"] == "LM010" for one in made["results"])


@pytest.mark.parametrize(
    "content", [b"- a\n", b"\x00\x01", b"a: [\n", b"a: 1\na: 2\n", b"\ta: 1\n"]
)
def test_what_is_no_configuration_is_answered_with_no(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    for flags in ((), ("--fix",)):
        code, out, err = lint(file, "--lmcache", "0.5.6", *flags)
        assert code == 1
        assert ("mend it by hand" in err) is bool(flags)
        assert "error LM00" in out
        assert file.read_bytes() == content


def test_the_environment_of_a_file_and_the_command_count(file: Path, tmp_path: Path) -> None:
    file.write_text("chunk_size: 32\n")
    env = tmp_path / "env"
    env.write_text(f"LMCACHE_CONFIG_FILE={file}\nLMCACHE_CHUNK_SIZE=64\n")
    connector = (
        '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",'
        ' "kv_connector_extra_config": {"lmcache.chunk_size": 128}}'
    )
    serve = f"vllm serve m --kv-transfer-config '{connector}'"
    for more, value in (([], 64), (["--serve", serve], 128)):
        code, out, _ = lint(file, "--lmcache", "0.5.6", "--env-file", env, *more, "--json")
        assert code == 0, out
        assert json.loads(out)["data"]["values"]["chunk_size"]["value"] == value


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--lmcache", "words"), 2),
        (("--lmcache", "9.9.9"), 3),
        (("--lmcache", "0.3.2"), 3),
        (("--lmcache", "0.5.6", "--env-file", "/none"), 4),
        (("--lmcache", "0.5.6", "--pid", "999999999"), 4),
        (("--lmcache", "0.5.6", "--pid", "1", "--env-file", "/none"), 2),
        (("--lmcache", "0.5.6", "--serve", "vllm 'serve"), 2),
        (("--lmcache", "0.5.6", "--sarif", "/none/x"), 4),
    ],
)
def test_what_cannot_be_asked_ends_with_its_code_and_a_next_step(
    file: Path, arguments: tuple[str, ...], code: int
) -> None:
    ended, _, err = lint(file, *arguments)
    assert ended == code
    assert err.startswith("kvpatch: ")
    assert len(err.splitlines()) == 2


def test_a_file_that_is_not_there_is_an_error_of_the_environment(tmp_path: Path) -> None:
    assert lint(tmp_path / "none", "--lmcache", "0.5.6")[0] == 4
    assert lint(tmp_path, "--lmcache", "0.5.6")[0] == 4


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "a bundle"
    where = ("--lmcache", "0.5.6", "--vllm", "0.32.0", "--gds-path", "/mnt/a")
    made = kvpatch("profile", "gds-blend", "--format", "bundle", "-o", folder, *where)
    assert made.code == 0, made.err
    return folder


def test_the_script_of_a_bundle_is_read_and_has_no_warning(bundle: Path) -> None:
    script = bundle / "serve.sh"
    beside = ("--env-file", bundle / "vllm.env", "--lmcache", "0.5.6", "--vllm", "0.32.0", "--json")
    code, out, err = lint(bundle / "lmcache.yaml", "--serve", script, *beside)
    found = json.loads(out)["data"]["findings"]
    assert (code, err) == (0, "")
    assert {one["level"] for one in found} == {"note"}
    # It was read: a flag that is changed in it is missed.
    script.write_text(script.read_text().replace("--no-enable-prefix-caching", ""))
    code, out, _ = lint(bundle / "lmcache.yaml", "--serve", script, *beside)
    assert code == 1
    assert "LM050" in {one["rule"] for one in json.loads(out)["data"]["findings"]}


@pytest.mark.parametrize("word", ["serve.sh", "./serve.sh", "vllm", "x" * 5000])
def test_a_word_that_is_no_command_and_no_file_is_told(file: Path, word: str) -> None:
    code, out, err = lint(file, "--lmcache", "0.5.6", "--serve", word)
    assert (code, out) == (2, "")
    assert "is no command that starts vLLM, and no file" in err


def test_a_file_that_starts_no_vllm_is_told(file: Path, tmp_path: Path) -> None:
    script = tmp_path / "build.sh"
    script.write_text("pip install vllm\n")
    code, _, err = lint(file, "--lmcache", "0.5.6", "--serve", script)
    assert code == 2
    assert "no line starts vLLM" in err


ABSENT = "export LMCACHE_MAX_LOCAL_CPU_SIZE=0\nsource /nowhere/site.env\nvllm serve m {transfer}\n"
TRANSFER = """--kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'"""


def test_what_a_file_that_is_not_here_may_set_is_no_error(tmp_path: Path) -> None:
    file, script = tmp_path / "lm.yaml", tmp_path / "start.sh"
    file.write_text("chunk_size: 256\n")
    script.write_text(ABSENT.format(transfer=TRANSFER))
    where = (file, "--lmcache", "0.5.6", "--serve", script)
    code, out, err = lint(*where)
    assert (code, "warning LM035" in out) == (0, True)
    assert "line 2 reads /nowhere/site.env, which can't be read here" in err
    # Where somebody tells what vLLM has, that counts.
    told = tmp_path / "vllm.env"
    told.write_text("LMCACHE_MAX_LOCAL_CPU_SIZE=0\n")
    code, out, err = lint(*where, "--env-file", told)
    assert (code, "error LM035" in out, "not certain" in err) == (1, True, False)
    script.write_text(ABSENT.format(transfer=TRANSFER).replace("source", "# source"))
    assert lint(*where)[0] == 1


def test_a_file_that_is_set_to_what_can_not_be_told_is_told(tmp_path: Path) -> None:
    file, script = tmp_path / "lm.yaml", tmp_path / "start.sh"
    file.write_text("chunk_size: 256\n")
    script.write_text(f"export LMCACHE_CONFIG_FILE=$CONF/lm.yaml\nvllm serve m {TRANSFER}\n")
    code, out, _ = lint(file, "--lmcache", "0.5.6", "--serve", script)
    assert (code, "is set to what can't be told here" in out) == (0, True)
    assert "is not set in it" not in out
    code, _, err = lint("--lmcache", "0.5.6", "--serve", script)
    assert (code, "LMCACHE_CONFIG_FILE is set to what can't be told here" in err) == (2, True)


def test_carriage_returns_are_an_error(file: Path, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_bytes(f"A=1\r\nvllm serve m {TRANSFER}\r\n".encode())
    code, out, _ = lint(file, "--lmcache", "0.5.6", "--serve", script)
    assert (code, "lines of the script end in carriage returns" in out) == (1, True)


def test_variables_alone_are_a_configuration(tmp_path: Path) -> None:
    place = tmp_path / "prof.env"
    where = ("--lmcache", "0.5.6", "--vllm", "0.32.0")
    assert kvpatch("profile", "blend", "--format", "env", "-o", place, *where).code == 0
    code, out, err = lint("--env-file", place, "--lmcache", "0.5.6")
    assert code == 0
    # As the file itself says.
    assert err.endswith("docker's --env-file would have another LMCACHE_BLEND_SPECIAL_STR\n")
    assert err.count("\n") == 1
    assert out.splitlines()[0] == f"{place}, for LMCache 0.5.6"
    assert out.splitlines()[-1] == "nothing to say against it"
    place.write_text(place.read_text().replace("BLEND_CHECK_LAYERS=1", "CHUNKSIZE=8"))
    code, out, _ = lint("--env-file", place, "--lmcache", "0.5.6", "--json")
    data = json.loads(out)["data"]
    assert code == 1
    assert data["file"] is None
    assert {one["rule"] for one in data["findings"]} == {"LM031", "LM062"}
    assert {(one["source"], one["fix"]) for one in data["findings"]} == {("environment", None)}
    assert data["values"]["enable_blending"] == {"value": True, "source": "environment"}


def test_variables_that_name_a_file_have_it_read(file: Path, tmp_path: Path) -> None:
    place = tmp_path / "vllm.env"
    place.write_text(f"LMCACHE_CONFIG_FILE={file}\n")
    code, out, _ = lint("--env-file", place, "--lmcache", "0.5.6")
    assert code == 1
    assert f"{file}:2:1: error LM010 " in out
    file.unlink()
    assert lint("--env-file", place, "--lmcache", "0.5.6")[0] == 4


@pytest.mark.parametrize("name", ["serve.sh", "vllm-blend.service"])
def test_a_bundle_is_checked_by_what_starts_it(name: str, tmp_path: Path) -> None:
    bundle, where = tmp_path / "bundle", ("--lmcache", "0.5.6", "--vllm", "0.32.0")
    assert kvpatch("profile", "blend", "--format", "bundle", "-o", bundle, *where).code == 0
    code, out, _ = lint("--serve", bundle / name, *where)
    assert out.splitlines()[0] == f"{bundle}/lmcache.yaml, for LMCache 0.5.6 with vLLM 0.32.0"
    assert (code, "error" in out.replace("0 errors", "")) == (0, False)
    script = bundle / "serve.sh"
    script.write_text(script.read_text().replace('"kv_role": "kv_both"', '"kv_role": "both"'))
    assert "error LM052" in lint("--serve", bundle / name, *where)[1]
    with (bundle / "vllm.env").open("a") as variables:
        variables.write("LMCACHE_CHUNK_SIZE=abc\n")
    assert "LMCACHE_CHUNK_SIZE: abc" in lint("--serve", bundle / name, *where)[1]


@pytest.mark.parametrize("script", [True, False])
def test_variables_of_the_command_are_a_configuration(script: bool, tmp_path: Path) -> None:
    command, place = "LMCACHE_CHUNK_SIZE=abc vllm serve m", tmp_path / "start.sh"
    place.write_text(f"{command}\n")
    code, out, _ = lint("--serve", place if script else command, "--lmcache", "0.5.6")
    told = str(place) if script else "the command of --serve"
    assert out.splitlines()[0] == f"{told}, for LMCache 0.5.6"
    assert (code, "LM020 LMCACHE_CHUNK_SIZE" in out) == (1, True)


STARTS = (
    "vllm serve m --kv-transfer-config.kv_connector LMCacheConnectorV1 "
    "--kv-transfer-config.kv_role kv_both"
)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("LMCACHE_CONFIG_FILE={}", "warning LM064 LMCACHE_CONFIG_FILE is set and not exported"),
        (
            "export LMCACHE_CONFIG_FILE={}\nexec sudo -u x \\",
            "warning LM064 LMCACHE_CONFIG_FILE does not reach vLLM: sudo does not hand it on",
        ),
        ("PYTHONHASHSEED=0\nexport LMCACHE_CONFIG_FILE={}", "LM064 PYTHONHASHSEED is set and not"),
        ("", "note LM060 LMCACHE_CONFIG_FILE is not set in it"),
        ("export LMCACHE_CONFIG_FILE={}", ""),
        ("OTHER=x\nexport LMCACHE_CONFIG_FILE={}", ""),
        ("docker run -e LMCACHE_CONFIG_FILE=/x i \\", ""),
    ],
)
def test_what_a_script_keeps_to_itself_is_told(before: str, said: str, tmp_path: Path) -> None:
    file, script = tmp_path / "a.yaml", tmp_path / "start.sh"
    file.write_text("chunk_size: 256\n")
    script.write_text(f"{before.format(file)}\n{STARTS}\n")
    _, out, _ = lint(file, "--serve", script, "--lmcache", "0.5.6")
    assert (said in out) if said else not {"LM060", "LM064"} & set(out.split())


@pytest.mark.parametrize(
    ("before", "told", "todo"),
    [
        ("LMCACHE_CHUNK_SIZE=256", "LMCACHE_CHUNK_SIZE is set and not", "`export LMCACHE_CHUNK"),
        ("LMCACHE_B=1\nLMCACHE_CONFIG_FILE=/x", "LMCACHE_CONFIG_FILE is", "`export LMCACHE_CONFIG"),
        (
            "export LMCACHE_CONFIG_FILE=/x\nexec sudo -u x \\",
            "sudo does not hand it on",
            "set LMCACHE_CONFIG_FILE behind sudo, as in `env LMCACHE_CONFIG_FILE=... vllm serve`",
        ),
        (
            "if x; then export LMCACHE_CONFIG_FILE=/a; fi",
            "LMCACHE_CONFIG_FILE is set to what can't be told here",
            "name a file, or variables",
        ),
    ],
)
def test_what_keeps_a_scripts_variables_from_vllm_is_said_with_what_hands_them_on(
    tmp_path: Path, before: str, told: str, todo: str
) -> None:
    script = tmp_path / "start.sh"
    script.write_text(f"{before}\n{STARTS}\n")
    code, _, err = lint("--serve", script, "--lmcache", "0.5.6")
    assert (code, told in err, todo in err) == (2, True, True), err


def test_a_scripts_own_variables_are_no_configuration_that_is_kept_back(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    own = "LMCACHE_PORT=6555\nlmcache server &\nLMCACHE_PID=$!\n"
    script.write_text(f"{own}{STARTS}\n")
    code, out, err = lint("--serve", script, "--lmcache", "0.5.6")
    assert (code, err, "LM064" in out) == (0, "", False)
    # What can't be told of the command comes before what is kept back.
    script.write_text(f'{own}LMCACHE_CHUNK_SIZE=8\nvllm serve m --kv-transfer-config "$X"\n')
    code, _, err = lint("--serve", script, "--lmcache", "0.5.6")
    assert (code, "the value of --kv-transfer-config: the shell puts it together" in err) == (
        2,
        True,
    )


def test_a_release_that_is_newer_than_this_kvpatch_knows_is_noted(tmp_path: Path) -> None:
    place = tmp_path / "a.yaml"
    place.write_text("chunk_size: 256\n")
    known = kvpatch("lint", place, "--lmcache", "0.5.6", "--vllm", "0.33.0")
    newer = kvpatch("lint", place, "--lmcache", "0.5.6", "--vllm", "9.9")
    assert (known.code, known.err, newer.code) == (0, "", 0)
    assert newer.err.startswith("kvpatch: note: vLLM 9.9 is untested: this kvpatch knows vLLM ")


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("gpu", [40, 80, 141])
def test_a_fresh_profile_for_gds_has_no_warning(tp: int, gpu: int, tmp_path: Path) -> None:
    model, folder = tmp_path / "m", tmp_path / "made"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    pair = ("--lmcache", "0.5.6", "--vllm", "0.32.0")
    sized = ("--model", model, "--tp", tp, "--gpu-memory", gpu, "--max-model-len", 16384)
    asked = ("profile", "gds", *pair, "--gds-path", "/mnt/k", *sized, "--format", "bundle")
    assert kvpatch(*asked, "-o", folder).code == 0
    ended = kvpatch("lint", *pair, "--serve", folder / "serve.sh", "--json")
    assert "--gpu-memory-utilization" in (folder / "serve.sh").read_text()
    found = [one for one in ended.data["findings"] if one["level"] != "note"]
    assert (ended.code, found) == (0, [])


def test_a_small_gds_buffer_is_held_against_the_model_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    config = tmp_path / "lmcache.yaml"
    config.write_text("gds_path: /mnt/k\nlocal_cpu: false\ngds_buffer_size: 4\n")
    serve = f"vllm serve {tmp_path} --max-model-len 4096"
    _, out, _ = lint(config, "--lmcache", "0.5.6", "--vllm", "0.32.0", "--serve", serve)
    assert "the longest prompt of the model takes 512 MiB on a rank: write 512" in out


def test_the_connector_alone_is_a_configuration(tmp_path: Path) -> None:
    code, out, err = lint("--serve", STARTS, "--lmcache", "0.5.6", "--vllm", "0.21.0")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "nothing to say against it"
    config = tmp_path / "serve.yaml"
    config.write_text(CONNECTED)
    assert lint("--serve", f"vllm serve m --config {config}", "--lmcache", "0.5.6")[0] == 0
    config.write_text("port: 1\n")
    code, _, err = lint("--serve", f"vllm serve m --config {config}", "--lmcache", "0.5.6")
    assert (code, "there is no configuration to check" in err) == (2, True)


def test_what_the_connector_itself_says_is_a_configuration() -> None:
    inner = (
        '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",'
        ' "kv_connector_extra_config": {"lmcache.max_local_cpu_sze": 50}}'
    )
    multi = f'{{"connectors": [{inner}]}}'
    both = (
        inner,
        f'{{"kv_connector": "MultiConnector", "kv_connector_extra_config": {multi}}}',
    )
    for connector in both:
        serve = f"vllm serve m --kv-transfer-config '{connector}'"
        code, out, _ = lint("--serve", serve, "--lmcache", "0.5.6")
        assert (code, "error LM055" in out) == (1, True)
    code, out, _ = lint("--serve", "vllm serve m --kv-transfer-config {x", "--lmcache", "0.5.6")
    assert (code, "error LM052" in out) == (1, True)


@pytest.mark.parametrize(
    "chosen",
    [
        "if x; then export LMCACHE_USE_LAYERWISE=True; else export LMCACHE_LOCAL_CPU=True; fi",
        'case "$1" in\n a) export LMCACHE_LOCAL_CPU=1 ;;\n *) export LMCACHE_CHUNK_SIZE=8 ;;\nesac',
    ],
)
def test_what_a_script_chooses_is_a_configuration(chosen: str, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(f"{chosen}\n{STARTS}\n")
    code, out, err = lint("--serve", script, "--lmcache", "0.5.6")
    assert (code, "what vLLM's variables are is not certain: LMCACHE_" in err) == (0, True)
    assert "LMCache reads a file only where whoever starts it exports that" in out


def test_what_a_script_keeps_is_no_configuration_unless_it_is_exported_before(
    tmp_path: Path,
) -> None:
    file, script, variables = tmp_path / "a.yaml", tmp_path / "start.sh", tmp_path / "a.env"
    file.write_text("chunk_sise: 256\n")
    script.write_text(f"LMCACHE_CONFIG_FILE={file}\n{STARTS}\n")
    code, _, err = lint("--serve", script, "--lmcache", "0.5.6")
    assert (code, "LMCACHE_CONFIG_FILE is set and not exported" in err) == (2, True)
    assert "write `export LMCACHE_CONFIG_FILE=...`, or name the file" in err
    variables.write_text("LMCACHE_CONFIG_FILE=/other.yaml\n")
    _, out, _ = lint("--serve", script, "--env-file", variables, "--lmcache", "0.5.6")
    assert f"{file}:1:1: error" in out
    assert "LM064" not in out


@pytest.mark.parametrize("end", ["sh", "service"])
def test_vllms_image_starts_the_server_by_itself(end: str, tmp_path: Path) -> None:
    file, script = tmp_path / "a.yaml", tmp_path / f"start.{end}"
    file.write_text("chunk_size: 256\n")
    command = f"/usr/bin/docker run --gpus all vllm/vllm-openai:v0.11.0 --model m {STARTS[13:]}"
    script.write_text(f"[Service]\nExecStart={command}\n" if end == "service" else command)
    code, out, _ = lint(file, "--serve", script, "--lmcache", "0.5.6")
    assert (code, "LM052" in out) == (0, False)


def test_without_a_file_and_variables_there_is_nothing_to_check(tmp_path: Path) -> None:
    place = tmp_path / "prof.env"
    place.write_text("LMCACHE_CHUNK_SIZE=8\n")
    for arguments, said in (
        ((), "no configuration"),
        (("--serve", "A=1 vllm serve m"), "no configuration"),
        (("--env-file", place, "--fix"), "--fix"),
        (("--serve", "LMCACHE_CHUNK_SIZE=8 vllm serve m", "--fix"), "--fix"),
    ):
        code, _, err = lint(*arguments, "--lmcache", "0.5.6")
        assert code == 2
        assert said in err
        assert len(err.splitlines()) == 2
    assert lint("--pid", str(os.getpid()), "--lmcache", "0.5.6")[0] == 0


def test_values_of_variables_are_not_judged_where_they_are_read_by_code_of_their_own(
    tmp_path: Path,
) -> None:
    place = tmp_path / "prof.env"
    place.write_text("LMCACHE_CHUNK_SIZE=8\nLMCACHE_CHUNKSIZE=8\n")
    code, out, err = lint("--env-file", place, "--lmcache", "0.3.3")
    assert code == 1
    assert "LM062" in out
    assert "LM020" not in out
    assert "values are not" in err


CONNECTED = "kv-transfer-config:\n  kv_connector: LMCacheConnectorV1\n  kv_role: kv_both\n"


@pytest.mark.parametrize(
    ("script", "text", "code"),
    [
        ("vllm serve m --config serve.yaml", CONNECTED, 0),
        ('cd "$(dirname "$0")"\nexec vllm serve m --config serve.yaml', CONNECTED, 0),
        ('here=$(dirname "$0")\nexec vllm serve m --config "$here/serve.yaml"', CONNECTED, 0),
        ("vllm serve m --config serve.yaml", "port: 1\n", 1),
        ("vllm serve m --config serve.yaml", "- a\n", 1),
        ("vllm serve m --config=serve.yaml", CONNECTED, 1),
        ("vllm serve m --config gone.yaml", CONNECTED, 0),
        ('vllm serve m --config "$1"', CONNECTED, 0),
    ],
)
def test_a_script_is_followed_to_vllms_own_file(
    tmp_path: Path, script: str, text: str, code: int
) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("chunk_size: 256\n")
    folder = tmp_path / "start"
    folder.mkdir()
    (folder / "serve.yaml").write_text(f"{text}api-key: sk-secret\n" if ":" in text else text)
    (folder / "start.sh").write_text(f"{script}\n")
    arguments = (config, "--lmcache", "0.5.6", "--vllm", "0.32.0", "--serve", folder / "start.sh")
    ended, out, err = lint(*arguments)
    assert ended == code, out
    assert "secret" not in out + err
    data = json.loads(lint(*arguments, "--json")[1])["data"]
    named = "serve.yaml" in script and "=serve.yaml" not in script
    read = named and text != "- a\n"
    assert data["serve_config"] == (str(folder / "serve.yaml") if read else None)
    unread = [one for one in data["findings"] if one["rule"] == "LM058"]
    assert bool(unread) is ("gone" in script or "$1" in script)


def test_a_finding_in_vllms_own_file_is_printed_and_logged_with_its_place(tmp_path: Path) -> None:
    config, serve = tmp_path / "lmcache.yaml", tmp_path / "serve.yaml"
    config.write_text("chunk_size: 256\n")
    serve.write_text('port: 1\nkv-transfer-config: \'{"kv_role": "kv_both"}\'\n')
    arguments = (config, "--lmcache", "0.5.6", "--serve", f"vllm serve m --config {serve}")
    log = tmp_path / "log.sarif"
    code, out, _ = lint(*arguments, "--sarif", log)
    assert code == 1
    assert f"{serve}:2:1: error LM052 " in out
    (result,) = json.loads(log.read_text())["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == serve.as_uri()
    assert place["region"]["startLine"] == 2
    (finding,) = json.loads(lint(*arguments, "--json")[1])["data"]["findings"]
    assert (finding["file"], finding["line"], finding["source"]) == (str(serve), 2, "launch")


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ('vllm serve m "$@"', {"LM059"}),
        ("vllm serve m $MORE --config bad.yaml", {"LM059"}),
        ("docker run IMAGE vllm serve m --config bad.yaml", {"LM058"}),
        ("CFG=bad.yaml\nif x; then CFG=good.yaml; fi\nvllm serve m --config $CFG", {"LM058"}),
        ("[ -d sub ] && cd sub\nvllm serve m --config bad.yaml", {"LM058"}),
        ("CFG=bad.yaml;\nvllm serve m --config $CFG", {"LM052"}),
    ],
)
def test_nothing_is_missing_where_not_all_of_a_script_is_known(
    tmp_path: Path, script: str, rules: set[str]
) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text("chunk_size: 256\n")
    (tmp_path / "bad.yaml").write_text("port: 1\n")
    (tmp_path / "start.sh").write_text(f"{script}\n")
    beside = ("--lmcache", "0.5.6", "--vllm", "0.32.0", "--serve", tmp_path / "start.sh", "--json")
    code, out, _ = lint(config, *beside)
    told = {one["rule"] for one in json.loads(out)["data"]["findings"]}
    # The script does not name LMCache's file.
    assert told - {"LM060"} == rules
    assert code == ("LM052" in rules)


def test_several_commands_that_start_vllm_are_told(tmp_path: Path, file: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("if x; then\n  vllm serve a\nelse\n  vllm serve b\nfi\n")
    _, _, err = lint(file, "--lmcache", "0.5.6", "--serve", script)
    assert "2 commands of --serve start vLLM, in line 2, 4; only one in line 4" in err


@pytest.mark.parametrize("name", ["lmcache.yaml", "{}/there/lmcache.yaml", "cur.yaml"])
def test_the_file_of_a_process_is_meant_from_where_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder, text in ((there, "chunk_size: 256\n"), (here, "chunk_sizes: 1\n")):
        folder.mkdir()
        (folder / "lmcache.yaml").write_text(text)
        (folder / "cur.yaml").symlink_to(folder / "lmcache.yaml")
    monkeypatch.chdir(here)
    environ = {**os.environ, "LMCACHE_CONFIG_FILE": name.format(tmp_path)}
    sleeps = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(sleeps, stdin=subprocess.PIPE, cwd=there, env=environ) as process:
        more = ("--pid", process.pid, "--lmcache", "0.5.6", "--json")
        alone = kvpatch("lint", *more)
        same = kvpatch("lint", there / "lmcache.yaml", *more)
        other = kvpatch("lint", here / "lmcache.yaml", *more)
        (there / "lmcache.yaml").unlink()
        gone = lint(*more)
        process.communicate()
    assert (alone.code, alone.data["file"]) == (0, str(there / Path(name).name))
    assert same.code == 0
    assert "LM060" in {one["rule"] for one in other.data["findings"]}
    assert gone[0] == 4


def test_who_would_read_a_file_of_variables_otherwise_is_told(tmp_path: Path) -> None:
    place = tmp_path / "vllm.env"
    place.write_text('LMCACHE_EXTRA_CONFIG={"use_odirect": true}\nLMCACHE_CHUNK_SIZE=512\n')
    code, _, err = lint("--env-file", place, "--lmcache", "0.5.6")
    assert code == 0
    assert "a shell would have another LMCACHE_EXTRA_CONFIG\n" in err
    assert "docker" not in err
    # LMCache takes outer quotes away, and docker leaves them to it; but not those within.
    place.write_text("LMCACHE_CHUNK_SIZE='512'\nLMCACHE_LOCAL_DISK='/a'b\nOTHER='a'b\n")
    _, _, err = lint("--env-file", place, "--lmcache", "0.5.6")
    assert "docker's --env-file would have another LMCACHE_LOCAL_DISK\n" in err
    assert "a shell" not in err
