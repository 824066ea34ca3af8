"""What is left of a worker without the edits that register the model, on real releases."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from hand_edits import new_readme, old_readme
from kvpatch import catalogue
from kvpatch.edits import imports_at_load, without_registration
from kvpatch.guard import GUARD_SOURCE
from kvpatch.outcome import Outcome
from kvpatch.plan import Options, Plan
from kvpatch.tree import Provenance
from packaging.version import Version
from planning import WORKER, outcomes, planned, reasons, series, written
from releases import release_file, vllm_releases

pytestmark = pytest.mark.releases

EARLY, LATE = "0.10.0", "0.32.0"
REGISTER = "VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.get_model())"


def edited(release: str) -> str:
    """The right edit of that release, as LMCache's instructions have it."""
    stock = bytes(release_file("vllm", release, WORKER))
    if release == EARLY:
        return old_readme(stock).decode()
    return new_readme(stock, "self.model_runner.get_model()").decode()


def judged(text: str, release: str) -> Plan:
    known = Options(known=catalogue.load())
    return planned(text.encode(), release, Provenance.OTHER, options=known)


@pytest.mark.parametrize("release", [str(release) for release in vllm_releases()])
def test_what_kvpatch_writes_leaves_the_release(release: str) -> None:
    stock = bytes(release_file("vllm", release, WORKER))
    plan = planned(stock, release)
    patched = ast.parse(written(plan))
    take_out = next(m.patch.take_out for m in series().members if m.patch.take_out)
    assert take_out(patched) == take_out(ast.parse(stock))
    assert catalogue.load().rest_of("vllm", Version(release), WORKER) == take_out(patched).digest
    found = judged(written(plan).decode(), release)
    assert set(outcomes(found).values()) <= {Outcome.ABSORBED, Outcome.OUT_OF_RANGE}


Edit = Callable[[str], str]


def _line(after: str, added: str) -> Edit:
    return lambda text: _once(text, after, f"{after}{added}")


def _end(added: str) -> Edit:
    return lambda text: f"{text}\n\n{added}\n"


def _instead(old: str, new: str) -> Edit:
    return lambda text: _once(text, old, new)


def _once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


IMPORTED = "from lmcache.integration.vllm.utils import ENGINE_NAME\n"
CREATED = "        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)\n"
REGISTERED = f"        {REGISTER}\n"
HEAD = "    def initialize_from_config("

BROKEN: dict[str, Edit] = {
    "a stray name at module level": _end("q"),
    "a mistyped import besides the right one": _line(IMPORTED, "from lmcahe.utils import x\n"),
    "an import of something that is not there": _line(IMPORTED, "import nosuch\n"),
    "the connector imported from elsewhere": _instead(
        "ensure_kv_transfer_initialized,\n", "get_kv_transfer_group,\n"
    ),
    "a decorator of no one": _instead(HEAD, f"    @foo\n{HEAD}"),
    "the model not loaded": lambda text: text.replace("self.model_runner.load_model(", "print("),
    "the cache not allocated": lambda text: text.replace(".initialize_kv_cache(", ".skip("),
    "a failing call elsewhere": _instead(
        "    def shutdown(self)", "    x = y\n    def shutdown(self)"
    ),
    "the connector turned into nothing": _end("ensure_kv_transfer_initialized = None"),
    "the engine name changed": _end("ENGINE_NAME += 'x'"),
    "a name deleted": _end("del VLLMModelTracker"),
    "the method replaced": _end("Worker.initialize_from_config = print"),
    "the tracker replaced": _end("VLLMModelTracker.register_model = print"),
    "an error at module level": _end("raise RuntimeError"),
    "the method replaced in the class": _instead(
        "    def shutdown(self)", "    initialize_from_config = None\n    def shutdown(self)"
    ),
    "the runner dropped": _line(REGISTERED, "        self.model_runner = None\n"),
    "the configuration dropped": _line(REGISTERED, "        self.vllm_config = None\n"),
    "self dropped": _line(REGISTERED, "        self = None\n"),
    "a generator": _line(REGISTERED, "        yield\n"),
    "the tracker cleared": _line(REGISTERED, "        VLLMModelTracker._vllm_models.clear()\n"),
    "an exit": _line(REGISTERED, "        sys.exit(1)\n"),
    "None first": _instead(
        REGISTERED, f"        VLLMModelTracker.register_model(ENGINE_NAME, None)\n{REGISTERED}"
    ),
    "the name bound later in the same method": _line(CREATED, "        ENGINE_NAME = self\n"),
    "the model bound over a name of the release": _instead(
        REGISTERED,
        "        kv_cache_config = self.model_runner.get_model()\n"
        "        VLLMModelTracker.register_model(ENGINE_NAME, kv_cache_config)\n",
    ),
    "a helper with the wrong number of arguments": lambda text: _once(
        _once(text, REGISTERED, "        give(1, 2)\n"),
        "class Worker(",
        "def give(model):\n    VLLMModelTracker.register_model(ENGINE_NAME, model)\n\n\n"
        "class Worker(",
    ),
    "imported where another import fails": _instead(
        IMPORTED,
        "try:\n    import nosuch\n    from lmcache.integration.vllm.utils import ENGINE_NAME\n"
        "except ImportError:\n    ENGINE_NAME = None\n",
    ),
    "an import in the class": _instead(
        "    def shutdown(self)",
        "    from lmcache.nosuch import x\n\n    def shutdown(self)",
    ),
    "an import in another method": _instead(
        "    def shutdown(self) -> None:\n",
        "    def shutdown(self) -> None:\n        from lmcache.nosuch import x\n",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_edit_that_changes_more_than_registration_is_foreign(name: str) -> None:
    right = edited(LATE)
    assert outcomes(judged(right, LATE))["KV001"] is Outcome.ABSORBED
    text = BROKEN[name](right)
    assert text != right
    ast.parse(text)
    found = judged(text, LATE)
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    assert reasons(found)


BROKEN_EARLY: dict[str, Edit] = {
    "the environment not initialized": lambda text: text.replace(
        " init_worker_distributed_environment(self.vllm_config,", " print(", 1
    ),
    "model parallelism deleted": lambda text: text.replace(
        "    ensure_model_parallel_initialized(", "    print("
    ),
}


@pytest.mark.parametrize("name", BROKEN_EARLY)
def test_an_early_edit_that_changes_more_than_registration_is_foreign(name: str) -> None:
    right = edited(EARLY)
    assert set(outcomes(judged(right, EARLY)).values()) == {Outcome.ABSORBED}
    text = BROKEN_EARLY[name](right)
    assert text != right
    ast.parse(text)
    found = judged(text, EARLY)
    assert set(outcomes(found).values()) == {Outcome.FOREIGN}
    assert "more was changed" in reasons(found)


RIGHT: dict[str, Edit] = {
    "a comment more": _line(REGISTERED, "        # mine\n"),
    "imported in the method": lambda text: _once(text, IMPORTED, "").replace(
        REGISTERED, f"        {IMPORTED}{REGISTERED}"
    ),
    "by a local name": _instead(
        REGISTERED,
        "        bare = self.model_runner.get_model()\n"
        "        VLLMModelTracker.register_model(ENGINE_NAME, bare)\n",
    ),
    "unwrapped until nothing is left": _instead(
        REGISTERED,
        "        bare = self.model_runner.model\n        while hasattr(bare, 'unwrap'):\n"
        "            bare = bare.unwrap()\n"
        "        VLLMModelTracker.register_model(ENGINE_NAME, bare)\n",
    ),
    "get_model asked for, which each release has": _instead(
        "ENGINE_NAME, self.model_runner.get_model())",
        "ENGINE_NAME, self.model_runner.get_model() if hasattr(self.model_runner, 'get_model') "
        "else self.model_runner.model)",
    ),
    "unless LMCache is not there": lambda text: _once(
        text,
        IMPORTED + "from lmcache.v1.compute.models.utils import VLLMModelTracker\n",
        "try:\n    " + IMPORTED + "    from lmcache.v1.compute.models.utils import "
        "VLLMModelTracker\nexcept ImportError:\n    ENGINE_NAME = VLLMModelTracker = None\n",
    ).replace(REGISTERED, f"        if VLLMModelTracker is not None:\n    {REGISTERED}"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_edit_in_other_words_is_absorbed(name: str) -> None:
    text = RIGHT[name](edited(LATE))
    found = judged(text, LATE)
    assert outcomes(found)["KV001"] is Outcome.ABSORBED, reasons(found)
    assert "in " in reasons(found)


def test_an_edit_of_a_release_that_was_never_read_is_foreign() -> None:
    found = judged(edited(LATE), "99.0.0")
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    assert "has not read vllm 99.0.0" in reasons(found)


def test_an_edit_in_another_function_is_none() -> None:
    stock = "class Worker:\n    def run(self):\n        pass\n"
    other = stock.replace("pass", "register_model(self)")
    assert without_registration(ast.parse(stock)) != without_registration(ast.parse(other))


def test_a_function_of_kvpatch_is_taken_out_only_as_it_writes_it() -> None:
    empty = without_registration(ast.parse("x = 1"), [GUARD_SOURCE])
    whole = ast.parse("x = 1\n" + GUARD_SOURCE)
    spoilt = ast.parse("x = 1\n" + GUARD_SOURCE.replace("return True", "return False"))
    assert without_registration(whole, [GUARD_SOURCE]) == empty
    assert without_registration(spoilt, [GUARD_SOURCE]) != empty
    assert without_registration(whole) != empty


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import lmcache", True),
        ("from lmcache.v1 import x", True),
        ("import os, lmcache.v1 as y", True),
        ("import lmcacher", False),
        ("from . import lmcache", False),
        ("try:\n    import lmcache\nexcept ImportError:\n    pass", False),
        ("def f():\n    import lmcache", False),
    ],
)
def test_a_package_that_loading_needs_is_seen(text: str, imported: bool) -> None:
    assert imports_at_load(ast.parse(text), "lmcache") is imported
