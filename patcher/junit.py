"""A matrix as a JUnit file, for a CI system to show."""

from __future__ import annotations

from collections.abc import Sequence

from .listing import label
from .outcome import ExitCode, KvpatchError
from .validate import Matrix


def junit(matrix: Matrix, errors: Sequence[KvpatchError] = ()) -> str:
    """A JUnit file: a test case for each release, and for each newest pair.

    ``errors`` are what else the run fails by, such as a regression: each is a case of its own.
    """
    from xml.etree.ElementTree import Element, SubElement, tostring

    suites = Element("testsuites", name="kvpatch validate")
    patched = SubElement(suites, "testsuite", name="releases")
    for row in matrix.rows:
        case = SubElement(patched, "testcase", classname=row.package, name=row.version)
        if row.error is not None:
            SubElement(case, "error", message=row.error.message)
        elif not row.ok:
            reason = "; ".join(f"{p['id']} {p['outcome']}: {p['reason']}" for p in row.refused)
            SubElement(case, "failure", message=reason or "no patch registers its model")
        elif lost := _lost(matrix, row.package, row.version):
            SubElement(case, "error", message=lost)
    blends = SubElement(suites, "testsuite", name="vLLM with some LMCache")
    for vllm in dict.fromkeys(
        [label(pair, "vllm") for pair in matrix.pairs] + [pair["vllm"] for pair in matrix.unread]
    ):
        mine = [pair for pair in matrix.pairs if label(pair, "vllm") == vllm]
        left_out = [pair["message"] for pair in matrix.unread if pair["vllm"] == vllm]
        case = SubElement(blends, "testcase", classname="vllm", name=vllm)
        if any(pair["ok"] for pair in mine):
            continue
        if left_out:
            SubElement(case, "error", message=_told(left_out))
        else:
            last = mine[-1]
            left = " ".join(last["after"])
            message = f"no LMCache blends with it; with {label(last, 'lmcache')}: {left}"
            SubElement(case, "failure", message=message)
    if errors:
        others = SubElement(suites, "testsuite", name="this run")
        for error in errors:
            case = SubElement(others, "testcase", classname=error.code, name=error.message)
            kind = "failure" if error.exit_code is ExitCode.NO else "error"
            SubElement(case, kind, message=error.message)
    for suite in suites:
        cases = list(suite)
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
        suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _lost(matrix: Matrix, package: str, version: str) -> str:
    """What is to be said of a release with a file that pairs need and that can't be read."""
    mine = [pair for pair in matrix.unread if pair[package] == version]
    messages = [pair["message"] for pair in mine if pair.get("distribution") == package]
    return _told(messages) if messages else ""


def _told(messages: Sequence[str]) -> str:
    return f"{len(messages)} of its pairs can't be checked: {messages[0]}"
