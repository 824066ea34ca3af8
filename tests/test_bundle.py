"""A profile as a folder: what each file says, as those that read it understand it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kvpatch.bundle import files, programs_of, write
from kvpatch.curing import curable
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.render import render
from kvpatch.sizing import Wanted
from kvpatch.templates import Pair, load, names
from lmcache_config import schema_of
from packaging.version import Version

pytestmark = pytest.mark.releases

ODD = "/mnt/a b$c%d"


def bundle(
    profile: str = "gds-blend",
    state: bool | None = True,
    model: Path | None = None,
    programs: Path | None = None,
    gds_path: str = ODD,
    vllm: str = "0.32.0",
    changes: dict[str, object] | None = None,
) -> dict[str, str]:
    pair = curable(Version("0.5.6"), Version(vllm))
    pair = replace(pair, registered=state, cured=dict.fromkeys(pair.cured, state))
    folder = Path("/srv/x y")
    settings = {"output": str(folder / "lmcache.yaml")}
    if load(profile).gds or load(profile).kind == "vllm":
        settings["gds_path"] = gds_path
    wanted = Wanted(model_path=model)
    made = render(profile, schema_of("0.5.6"), pair, settings, wanted, changes)
    return dict(files(load(profile), pair, made, folder, programs))


@pytest.mark.parametrize("profile", ["gds-blend", "blend", "gds", "cpu-offload"])
def test_compose_mounts_the_file_where_its_variable_says(profile: str) -> None:
    service = yaml.safe_load(bundle(profile)["compose.yaml"])["services"]["vllm"]
    inside = service["environment"]["LMCACHE_CONFIG_FILE"]
    assert f"./lmcache.yaml:{inside}:ro" in service["volumes"]
    assert service["environment"]["PYTHONHASHSEED"] == "0"
    told = ODD.replace("$", "$$")
    assert any(told in volume for volume in service["volumes"]) is load(profile).gds
    assert service["ulimits"] == {"memlock": -1}


@pytest.mark.parametrize("vllm", ["0.11.1", "0.32.0"])
@pytest.mark.parametrize("profile", names())
def test_compose_starts_what_the_script_starts_whatever_the_image_does(
    profile: str, vllm: str
) -> None:
    found = bundle(profile, vllm=vllm, model=Path("/m/a"))
    service = yaml.safe_load(found["compose.yaml"])["services"]["vllm"]
    words = [*service["entrypoint"], *(word.replace("$$", "$") for word in service["command"])]
    script = found["serve.sh"].replace("\\\n", " ")
    (line,) = (one for one in script.splitlines() if one.startswith("  exec "))
    assert ["exec", *words, "$@"] == shlex.split(line)
    assert words[:3] == ["vllm", "serve", "/m/a"]


@pytest.mark.parametrize("profile", names())
def test_patches_are_asked_for_where_the_profile_needs_them(profile: str) -> None:
    needs = load(profile).kind == "lmcache"
    for text in bundle(profile, state=None, programs=Path("/v/bin")).values():
        assert ("patches" in text.replace("no patches of kvpatch", "")) <= needs
        assert ("kvpatch apply" in text) <= needs
    assert ("which needs the same patches" in bundle(profile)["README.md"]) is needs


@pytest.mark.parametrize(
    ("vllm", "lmcache", "image"),
    [
        ("0.32.0", "0.5.6", "vllm/vllm-openai:v0.32.0"),
        ("0.32.0+kvpatch.6", "0.5.6", "vllm-own:0.32.0-kvpatch.6"),
        ("0.32.0+cpu.kvpatch.6", "0.5.6+kvpatch.6", "vllm-own:0.32.0-cpu.kvpatch.6"),
        ("0.32.0", "0.5.6+kvpatch.6.vllm.0.32.0", "vllm-own:0.32.0"),
    ],
)
@pytest.mark.parametrize("profile", ["blend", "mp-cache"])
def test_compose_names_an_image_that_can_be(
    profile: str, vllm: str, lmcache: str, image: str
) -> None:
    pair = curable(Version(lmcache), Version(vllm))
    made = render(profile, schema_of("0.5.6"), pair, {})
    text = files(load(profile), pair, made, Path("/x"))["compose.yaml"]
    for service in yaml.safe_load(text)["services"].values():
        assert service["image"] == image
        # As Docker's reference grammar has it.
        assert re.fullmatch(r"[a-z0-9/-]+:\w[\w.-]{0,127}", service["image"], re.ASCII)
    told = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    own = image.startswith("vllm-own")
    assert ("No public image has" in told) is own
    assert not own or f"build one by that name ({image})" in told
    for release in (vllm, lmcache):
        assert "+" not in release or release in told


def test_a_service_waits_for_the_storage_and_may_lock_memory() -> None:
    unit = bundle()["vllm-gds-blend.service"]
    assert 'RequiresMountsFor="/mnt/a b$c%%d"' in unit
    assert "LimitMEMLOCK=infinity" in unit
    assert "RequiresMountsFor" not in bundle("blend")["vllm-blend.service"]


@pytest.mark.parametrize(
    ("state", "told"),
    [(True, None), (False, "does not run it as it is"), (None, "no host was looked at")],
)
def test_the_readme_says_what_to_run_first(state: bool | None, told: str | None) -> None:
    text = bundle(state=state)["README.md"]
    assert ("kvpatch apply" in text) is (told is not None)
    assert told is None or told in text
    for name in bundle():
        assert f"`{name}`" in text or name == "README.md"


def test_the_server_has_a_script_of_its_own() -> None:
    pair = Pair(Version("0.5.6"), Version("0.32.0"))
    made = render("mp-cache", schema_of("0.5.6"), pair, {})
    found = files(load("mp-cache"), pair, made, Path("/x"))
    assert "lmcache server" in found["server.sh"]
    assert "lmcache.yaml" not in found
    assert (
        yaml.safe_load(found["compose.yaml"])["services"]["lmcache"]["entrypoint"][0] == "lmcache"
    )


def test_nothing_is_written_over_unless_that_is_asked_for(tmp_path: Path) -> None:
    texts = {"a": "1", "b.sh": "2"}
    write(tmp_path / "new", texts, force=False)
    assert (tmp_path / "new" / "b.sh").stat().st_mode & 0o111
    with pytest.raises(KvpatchError, match="nothing was written") as caught:
        write(tmp_path / "new", {"a": "3", "c": "4"}, force=False)
    assert caught.value.exit_code is ExitCode.REFUSED
    assert (tmp_path / "new" / "a").read_text() == "1"
    assert not (tmp_path / "new" / "c").exists()
    write(tmp_path / "new", {"a": "3"}, force=True)
    assert (tmp_path / "new" / "a").read_text() == "3"


@pytest.mark.parametrize("profile", ["gds-blend", "blend", "mp-cache", "native-offload"])
def test_the_readme_says_where_the_model_belongs_unless_it_was_named(profile: str) -> None:
    without = bundle(profile)
    told = without["README.md"]
    assert told.index("for the word MODEL in `serve.sh` and `compose.yaml`") < told.index(
        "    ./serve.sh"
    )
    assert {name for name in ("serve.sh", "compose.yaml") if "MODEL" in without[name]} == {
        "serve.sh",
        "compose.yaml",
    }
    assert not any("MODEL " in text for text in bundle(profile, model=Path("/m/x")).values())


def test_the_folder_of_a_model_is_mounted_in_compose() -> None:
    service = yaml.safe_load(bundle("blend", model=Path("/m/a$b"))["compose.yaml"])["services"]
    assert service["vllm"]["command"][0] == "/m/a$$b"
    assert "/m/a$$b:/m/a$$b:ro" in service["vllm"]["volumes"]
    plain = yaml.safe_load(bundle("blend")["compose.yaml"])["services"]["vllm"]
    assert len(plain["volumes"]) == 1


def mounts(text: str) -> set[tuple[str, str]]:
    """Where each volume of vLLM's service comes from, and where it is inside."""
    volumes = yaml.safe_load(text)["services"]["vllm"].get("volumes", [])
    pairs = (
        (one["source"], one["target"]) if isinstance(one, dict) else one.split(":")[:2]
        for one in volumes
    )
    return {(a.replace("$$", "$"), b.replace("$$", "$")) for a, b in pairs}


@pytest.mark.parametrize("folder", ["/mnt/kv", "/mnt/a:b", "/mnt/a,b", ODD])
def test_the_folder_of_vllms_own_tier_is_mounted(folder: str) -> None:
    made = bundle("native-offload", gds_path=folder)
    command = yaml.safe_load(made["compose.yaml"])["services"]["vllm"]["command"]
    extra = json.loads(command[-1].replace("$$", "$"))["kv_connector_extra_config"]
    root = extra["secondary_tiers"][0]["root_dir"]
    assert root == folder
    assert mounts(made["compose.yaml"]) == {(root, root)}
    told = folder.replace("%", "%%")
    assert f'RequiresMountsFor="{told}"' in made["vllm-native-offload.service"]


def test_without_a_tier_vllm_gets_no_folder() -> None:
    made = bundle("native-offload", vllm="0.21.0")
    assert mounts(made["compose.yaml"]) == set()


def test_vllms_own_offloading_asks_for_no_lmcache_in_the_image() -> None:
    made = bundle("native-offload", state=None)
    assert "The image needs LMCache" not in made["compose.yaml"]
    assert "needs LMCache" not in made["README.md"]
    assert "same patches" not in made["README.md"]
    assert "The image needs LMCache" in bundle()["compose.yaml"]


@pytest.mark.parametrize("folder", ["/mnt/a:b", "/mnt/a,/mnt/b", "/mnt/a:b,/mnt/c"])
def test_every_folder_is_mounted_whatever_its_name(folder: str) -> None:
    made = bundle("gds", gds_path=folder, model=Path("/m:1/x"))
    found = mounts(made["compose.yaml"])
    assert found >= {(one, one) for one in (*folder.split(","), "/m:1/x")}
    for one in folder.split(","):
        assert f'"{one}"' in made["vllm-gds.service"]


def test_a_tier_that_was_set_is_mounted_and_waited_for() -> None:
    changes: dict[str, object] = {"local_disk": "/mnt/d", "max_local_disk_size": 5}
    made = bundle("blend", changes=changes)
    assert ("/mnt/d", "/mnt/d") in mounts(made["compose.yaml"])
    assert 'RequiresMountsFor="/mnt/d"' in made["vllm-blend.service"].splitlines()


def test_a_unit_finds_vllm_where_its_environment_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "a b%$" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to("/usr/bin/env")
    assert programs_of(None) is None
    assert programs_of(folder / "python") is None
    (folder / "vllm").touch()
    assert programs_of(folder / "python") == programs_of(folder.parent) == folder
    lines = bundle("blend", programs=folder)["vllm-blend.service"].splitlines()
    place = str(folder).replace("%", "%%")
    assert f'Environment="PATH={place}:/usr/local/bin:/usr/bin:/bin"' in lines
    assert not any(line.startswith("Environment=") for line in bundle()["vllm-gds-blend.service"])
