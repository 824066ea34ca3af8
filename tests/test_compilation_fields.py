"""What CompilationConfig takes, against the sources of every release."""

from __future__ import annotations

import ast
import re

import pytest
from kvpatch import rules
from kvpatch.compilation_fields import FIELDS, FORBIDS, MODES, NEWEST, faults, has
from kvpatch.rules import Level
from linted import LMCACHE, run
from packaging.version import Version
from releases import vllm_releases
from test_vllm_options import first_of


def classes(release: str) -> dict[str, ast.ClassDef]:
    text = first_of(
        release, "vllm/config/compilation.py", "vllm/config/__init__.py", "vllm/config.py"
    )
    return {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_the_fields_and_modes_are_the_releases_own(release: str) -> None:
    there = classes(release)
    fields = {
        node.target.id
        for node in there["CompilationConfig"].body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        # The others are no arguments of the class.
        and not re.search(r"ClassVar|PrivateAttr|init=False", ast.unparse(node))
    }
    version = Version(release)
    assert {name for name in FIELDS if has(name, version)} == fields
    assert ("CUDAGraphMode" in there) is has("cudagraph_mode", version)
    if "CUDAGraphMode" in there:
        body = there["CUDAGraphMode"].body
        names = [ast.unparse(one.targets[0]) for one in body if isinstance(one, ast.Assign)]
        assert sorted(names) == sorted(MODES)


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_unknown_fields_stop_where_the_release_forbids_them(release: str) -> None:
    (decorated,) = [one for name, one in classes(release).items() if name == "CompilationConfig"]
    own = " ".join(ast.unparse(one) for one in [*decorated.decorator_list, *decorated.bases])
    shared = first_of(release, "vllm/config/utils.py", "vllm/config/__init__.py", "vllm/config.py")
    forbids = "forbid" in own or ("config" in own and 'extra="forbid"' in shared)
    assert forbids is (Version(release) >= FORBIDS)


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("level", "it is mode here"),
        ("use_cudagraph", "it is cudagraph_mode here"),
        ("full_cuda_graph", "it is cudagraph_mode here"),
        ("max_capture_size", "it is max_cudagraph_capture_size here"),
        ("traced_files", "leave it out"),
        ("bogus", "leave it out"),
    ],
)
def test_a_field_of_no_or_another_release_stops_vllm(key: str, right: str) -> None:
    ((told, level),) = faults({"cudagraph_mode": "piecewise", key: 1}, Version("0.32.0"))
    assert (told.endswith(right), level) == (True, Level.ERROR)
    assert [one for _, one in faults({"bogus": 1}, Version("0.11.0"))] == [Level.WARNING]


def test_what_may_be_right_is_not_told() -> None:
    assert list(faults(dict.fromkeys(FIELDS, 0), None)) == []
    assert list(faults({"bogus": 1}, Version(f"{NEWEST.major}.{NEWEST.minor + 1}"))) == []
    assert list(faults({"cudagraph_mode": 0}, Version("0.32.0"))) == []
    assert list(faults({"cudagraph_mode": None}, Version("0.32.0"))) == []


def test_a_mode_that_there_is_not_stops_vllm() -> None:
    for mode in ("BOGUS", "0", ""):
        ((told, level),) = faults({"cudagraph_mode": mode}, Version("0.32.0"))
        assert (MODES[0] in told, level) == (True, Level.ERROR)


@pytest.mark.releases
@pytest.mark.parametrize(
    "option",
    [
        """-cc '{"cudagraph_mode":"PIECEWISE","level":3}'""",
        "-cc.level 3",
        """--compilation-config '{"level":3}' -cc '{"mode":3}'""",
        "-cc.cudagraph_mode BOGUS",
    ],
)
def test_lint_tells_of_them_as_vllm_stops(option: str) -> None:
    linted = run("", serve=f"vllm serve m {option} {LMCACHE % ''}", vllm="0.32.0")
    (found,) = [one for one in linted.findings if one.rule is rules.SERVE_CONFIG]
    assert found.level is Level.ERROR
