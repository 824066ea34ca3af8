from __future__ import annotations

import ast
import configparser
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    return parser


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("patcher", "patches", "profiles"):
        for path in (CHECKOUT / name).iterdir():
            if path.is_file():
                (source / name).mkdir(exist_ok=True)
                (source / name / path.name).write_bytes(path.read_bytes())
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((CHECKOUT / name).read_bytes())
    command = [sys.executable, "-c", "from setuptools import build_meta as b; b.build_wheel('..')"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _lines(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def test_every_folder_with_an_init_is_a_listed_package(
    setup_cfg: configparser.ConfigParser,
) -> None:
    mapping = dict(line.split(" = ") for line in _lines(setup_cfg["options"]["package_dir"]))
    listed = {mapping[name] for name in _lines(setup_cfg["options"]["packages"])}
    tops = ("patcher", "patches", "profiles")
    in_tree = {
        str(path.parent.relative_to(CHECKOUT))
        for top in tops
        for path in (CHECKOUT / top).rglob("__init__.py")
    }
    assert listed == in_tree


def test_the_wheel_holds_every_file_of_the_tree(wheel_names: set[str]) -> None:
    names = {"patcher": "kvpatch", "patches": "kvpatch/patches", "profiles": "kvpatch/profiles"}
    expected = {
        f"{names[top]}/{path.name}"
        for top in names
        for path in (CHECKOUT / top).iterdir()
        if path.is_file()
    }
    assert expected <= wheel_names


def test_the_wheel_claims_no_top_level_name_but_kvpatch(wheel_names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvpatch"}


def test_no_engine_module_shadows_a_subpackage() -> None:
    stems = {path.stem for path in (CHECKOUT / "patcher").glob("*.py")}
    assert not stems & {"patches", "profiles"}


def test_patches_refuse_to_be_imported_under_another_name() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import patches"
    answer = subprocess.run(
        [sys.executable, "-c", code, str(CHECKOUT)], check=False, capture_output=True, text=True
    )
    assert answer.returncode == 1
    assert "this package is kvpatch.patches" in answer.stderr


def test_engine_modules_use_relative_imports() -> None:
    for path in (CHECKOUT / "patcher").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            assert not any(name.partition(".")[0] == "kvpatch" for name in names), path.name


def test_the_installed_version_is_the_one_in_the_package() -> None:
    import kvpatch

    assert metadata.version("kvpatch") == kvpatch.__version__


def test_tests_are_no_package() -> None:
    assert not (CHECKOUT / "tests" / "__init__.py").exists()


@pytest.mark.parametrize("verb", ["status", "apply", "list"])
def test_python_m_kvpatch_is_the_command(verb: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "kvpatch", verb, "--help"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"Usage: kvpatch {verb}")
