"""The static form of the post-condition, on modules written for it and on generated ones."""

from __future__ import annotations

import ast
import codecs
import difflib
import textwrap
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvpatch.guard import stock_without_guard
from kvpatch.outcome import Outcome
from kvpatch.patch import Judgement
from kvpatch.registration import registers_bare_model
from kvpatch.tree import Provenance
from packaging.version import Version
from planning import outcomes, planned, replanned, written
from worker_stand_in import (
    BARE,
    BARE_GET_MODEL,
    NESTED_DEEP,
    NESTED_ONLY,
    OTHER,
    PLAIN,
    WRAPPED,
    in_process_violations,
    other_violations,
)

IMPORTS = """
import vllm
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
"""
REGISTER = "VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.get_model())"
CREATE = "ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)"


def _late(body: str, imports: str = IMPORTS, helpers: str = "") -> str:
    """A worker that creates the connector in ``initialize_from_config``, after that body."""
    text = imports + "\n\nclass Worker:\n    def load_model(self):\n"
    text += "        self.model_runner.load_model()\n\n"
    text += "    def initialize_from_config(self, kv_cache_config):\n"
    text += textwrap.indent(textwrap.dedent(body), "        ")
    text += f"\n        {CREATE}\n"
    return text + "\n" + helpers


def _early(load: str, environment: str = "pass", imports: str = IMPORTS) -> str:
    """A worker that creates the connector where that body of ``load_model`` says."""
    text = imports + "\n\nclass Worker:\n    def init_device(self):\n"
    text += "        init_worker_distributed_environment(self.vllm_config, 0)\n\n"
    text += "    def load_model(self):\n        self.model_runner.load_model()\n"
    text += textwrap.indent(textwrap.dedent(load), "        ")
    text += "\n\n\ndef init_worker_distributed_environment(vllm_config, rank):\n"
    return text + textwrap.indent(environment, "    ") + "\n"


def _judge(text: str, version: str = "0.32.0") -> Judgement:
    return registers_bare_model(ast.parse(text), Version(version))


GOOD = {
    "get_model": REGISTER,
    "by keywords": "VLLMModelTracker.register_model("
    "vllm_model=self.model_runner.get_model(), instance_id=ENGINE_NAME)",
    "through local names": "runner = self.model_runner\nmodel = runner.get_model()\n"
    "VLLMModelTracker.register_model(ENGINE_NAME, model)",
    "under the literal name of all releases so far": "VLLMModelTracker.register_model("
    "'vllm-instance', self.model_runner.get_model())",
    "unwrapped until nothing is left": "model = self.model_runner.model\n"
    "while hasattr(model, 'unwrap'):\n    model = model.unwrap()\n"
    "VLLMModelTracker.register_model(ENGINE_NAME, model)",
    "on both branches": f"if vllm.something():\n    {REGISTER}\nelse:\n    {REGISTER}",
    "imported in the function": "from lmcache.integration.vllm.utils import ENGINE_NAME as name\n"
    "from lmcache.v1.compute.models.utils import VLLMModelTracker as tracker\n"
    "tracker.register_model(name, self.model_runner.get_model())",
    "unless the import fails": "try:\n"
    "    from lmcache.v1.compute.models.utils import VLLMModelTracker\n"
    f"    {REGISTER}\nexcept ImportError:\n    pass",
    "unless the tracker is None": f"if VLLMModelTracker is not None:\n    {REGISTER}",
    "unless the tracker is None, the other way round": "if VLLMModelTracker is None:\n"
    f"    pass\nelse:\n    {REGISTER}",
    "where the tracker is true": f"if VLLMModelTracker:\n    {REGISTER}",
    "inside a with block": f"with vllm.pool():\n    {REGISTER}",
    "unless it is there already": "if VLLMModelTracker._vllm_models.get(ENGINE_NAME) is "
    "self.model_runner.get_model():\n    pass\nelse:\n    " + REGISTER,
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD.keys())
def test_a_worker_that_registers_the_bare_model_first_holds(body: str) -> None:
    text = _late(body)
    assert _judge(text).holds, _judge(text).reason
    kinds = [NESTED_DEEP, WRAPPED] if "get_model" in body else [BARE, WRAPPED, NESTED_ONLY]
    imports_name = "vllm-instance" not in body and "self.get_model" not in body
    if imports_name:
        assert in_process_violations(text.encode(), None, kinds, [PLAIN]) == []


BAD = {
    "not at all": "pass",
    "only by name": "VLLMModelTracker.register_model",
    "the wrapped model": "VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.model)",
    "the runner": "VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner)",
    "something unknown": "VLLMModelTracker.register_model(ENGINE_NAME, vllm.find_model())",
    "under another name": "VLLMModelTracker.register_model('my-engine', "
    "self.model_runner.get_model())",
    "under the other constant of that name": "from lmcache.v1.manager import ENGINE_NAME\n"
    + REGISTER,
    "under an unknown condition": f"if vllm.something():\n    {REGISTER}",
    "in a loop that may have no round": f"for i in vllm.things():\n    {REGISTER}",
    "in a while loop that may have no round": f"while vllm.things():\n    {REGISTER}",
    "in a branch of a match": f"match vllm.thing():\n    case 1:\n        {REGISTER}",
    "in a function that is never called": f"def register():\n    {REGISTER}",
    "in a lambda": f"later = lambda: {REGISTER}",
    "on another tracker": "other.register_model(ENGINE_NAME, self.model_runner.get_model())",
    "by a function of that name": "register_model(ENGINE_NAME, self.model_runner.get_model())",
    "in a try block that may fail before": f"try:\n    vllm.prepare()\n    {REGISTER}\n"
    "except Exception:\n    pass",
    "the wrapped one first, which wins": "VLLMModelTracker.register_model(ENGINE_NAME, "
    f"self.model_runner.model)\n{REGISTER}",
    "a name that was bound anew": "model = self.model_runner.get_model()\nmodel = wrap(model)\n"
    "VLLMModelTracker.register_model(ENGINE_NAME, model)",
    "wrapped on one branch": "model = self.model_runner.model\nif vllm.something():\n"
    "    model = model.unwrap()\nVLLMModelTracker.register_model(ENGINE_NAME, model)",
    "wrapped in one case of an expression": "model = self.model_runner.get_model() "
    "if vllm.something() else self.model_runner.model\n"
    "VLLMModelTracker.register_model(ENGINE_NAME, model)",
    "unless something else is there already": "if VLLMModelTracker._vllm_models.get('x') is "
    "self.model_runner.get_model():\n    pass\nelse:\n    " + REGISTER,
    "after the connector": f"{CREATE}\n{REGISTER}",
    "after an assigned connector": f"c = {CREATE}\n{REGISTER}",
    "after a continue": f"for i in (1,):\n    continue\n    {REGISTER}",
    "only for type checkers": f"if TYPE_CHECKING:\n    {REGISTER}",
    "where the tracker is None": f"if VLLMModelTracker is None:\n    {REGISTER}",
    "behind a constant": f"if False:\n    {REGISTER}",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_worker_that_does_not_surely_register_the_bare_model_first_does_not_hold(
    body: str,
) -> None:
    judgement = _judge(_late(body))
    assert not judgement.holds
    assert judgement.reason


@pytest.mark.parametrize(
    "imports",
    [
        IMPORTS,
        IMPORTS.replace("import VLLMModelTracker", "import (\n    VLLMModelTracker,\n)"),
        "try:\n" + textwrap.indent(IMPORTS.strip(), "    ") + "\nexcept ImportError:\n"
        "    ENGINE_NAME = VLLMModelTracker = None\n",
    ],
)
def test_it_does_not_matter_how_the_module_imports_lmcache(imports: str) -> None:
    assert _judge(_late(REGISTER, imports)).holds


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        (
            (
                "import lmcache.v1.compute.models.utils as models\n"
                "import lmcache.integration.vllm.utils as utils\n"
            ),
            (
                "models.VLLMModelTracker.register_model(utils.ENGINE_NAME, "
                "self.model_runner.get_model())"
            ),
        ),
        (
            (
                "from lmcache.v1.compute.models import utils as models\n"
                "from lmcache.integration.vllm import utils\n"
            ),
            (
                "models.VLLMModelTracker.register_model(utils.ENGINE_NAME, "
                "self.model_runner.get_model())"
            ),
        ),
        (
            ("import lmcache.v1.compute.models.utils\nimport lmcache.integration.vllm.utils\n"),
            (
                "lmcache.v1.compute.models.utils.VLLMModelTracker.register_model("
                "lmcache.integration.vllm.utils.ENGINE_NAME, self.model_runner.get_model())"
            ),
        ),
    ],
)
def test_a_tracker_reached_through_its_module_is_the_tracker(imports: str, call: str) -> None:
    text = _late(call, STOCK_IMPORTS + imports)
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN]) == []
    assert _judge(text).holds


def test_a_tracker_of_another_package_is_not_lmcaches() -> None:
    imports = IMPORTS.replace("from lmcache.v1.compute.models.utils", "from mine")
    assert not _judge(_late(REGISTER, imports)).holds


@pytest.mark.parametrize(
    "helpers",
    [
        "def give(model):\n    VLLMModelTracker.register_model(ENGINE_NAME, model)\n",
        (
            "def give(model):\n    if model is None:\n        raise ValueError\n"
            "    VLLMModelTracker.register_model(ENGINE_NAME, model)\n"
        ),
    ],
)
def test_registration_in_a_helper_function_is_followed(helpers: str) -> None:
    assert _judge(_late("give(self.model_runner.get_model())", helpers=helpers)).holds
    assert not _judge(_late("give(self.model_runner.model)", helpers=helpers)).holds


def test_a_helper_that_returns_before_it_registers_does_not_hold() -> None:
    helpers = (
        "def give(model):\n    if vllm.busy():\n        return\n"
        "    VLLMModelTracker.register_model(ENGINE_NAME, model)\n"
    )
    assert not _judge(_late("give(self.model_runner.get_model())", helpers=helpers)).holds


def test_registration_in_a_helper_method_is_followed() -> None:
    text = _late("self._give()")
    method = f"    def _give(self):\n        {REGISTER}\n\n    def initialize_from_config"
    assert _judge(text.replace("    def initialize_from_config", method)).holds


def test_registration_in_load_model_holds_for_a_connector_created_later() -> None:
    text = _late("pass").replace("load_model()\n", f"load_model()\n        {REGISTER}\n")
    assert _judge(text).holds
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN]) == []


def test_an_early_return_of_load_model_before_registration_does_not_hold() -> None:
    text = _late("pass").replace(
        "load_model()\n",
        f"load_model()\n        if vllm.dummy():\n            return\n        {REGISTER}\n",
    )
    assert not _judge(text).holds


def test_registration_by_a_finally_block_holds() -> None:
    assert _judge(_late(f"try:\n    vllm.prepare()\nfinally:\n    {REGISTER}")).holds


def test_the_attribute_is_the_bare_model_up_to_0_10_0_alone() -> None:
    body = "VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.model)\n"
    text = _early(body + "ensure_kv_transfer_initialized(self.vllm_config)")
    for version in ("0.8.5", "0.8.5.post1", "0.9.2", "0.10.0", "0.10.0+cpu"):
        assert _judge(text, version).holds, version
    for version in ("0.10.1", "0.10.1.1", "0.10.2", "0.11.0", "0.11.1", "0.33.0"):
        judgement = _judge(text, version)
        assert not judgement.holds
        assert "CUDAGraphWrapper is not supported" in judgement.reason


def test_a_connector_that_is_commented_out_is_not_created() -> None:
    text = _early(REGISTER, "pass  # ensure_kv_transfer_initialized(vllm_config)")
    judgement = _judge(text, "0.10.0")
    assert not judgement.holds
    assert "creates the KV connector" in judgement.reason


@pytest.mark.parametrize(
    "text", ["", "x = 1\n", "class Worker:\n    pass\n", "class Other:\n    pass\n"]
)
def test_a_module_without_a_connector_does_not_hold(text: str) -> None:
    judgement = _judge(text)
    assert not judgement.holds
    assert "creates the KV connector" in judgement.reason


def test_a_module_with_too_many_paths_does_not_hold() -> None:
    names = "\n".join(f"if f():\n    n{i} = self.model_runner" for i in range(12))
    judgement = _judge(_late(f"{names}\n{REGISTER}"))
    assert not judgement.holds
    assert "too many paths" in judgement.reason


REGISTER_LOCAL = "VLLMModelTracker.register_model(ENGINE_NAME, model)"
UNSEEN = {
    "unwrapped once, which one without layers has no way to": "VLLMModelTracker.register_model("
    "ENGINE_NAME, self.model_runner.model.unwrap())",
    "unwrapped by one layer": "model = self.model_runner.model\n"
    "if hasattr(model, 'unwrap'):\n    model = model.unwrap()\n" + REGISTER_LOCAL,
    "unwrapped as long as a default is true": "model = self.model_runner.get_model()\n"
    "while getattr(model, 'unwrap', True):\n    model = model.unwrap()\n" + REGISTER_LOCAL,
    "after an unbound name": f"vllm.see(no_such_name)\n{REGISTER}",
    "with an unbound name": "VLLMModelTracker.register_model(ENGINE_NAME, "
    "self.model_runner.get_model(no_such_name))",
    "with an argument too many": "VLLMModelTracker.register_model(ENGINE_NAME, "
    "self.model_runner.get_model(), True)",
    "with an argument that get_model does not take": "VLLMModelTracker.register_model("
    "ENGINE_NAME, self.model_runner.get_model(1))",
    "with an unknown word": "VLLMModelTracker.register_model("
    "ENGINE_NAME, model=self.model_runner.get_model())",
    "imported from a module that is not there": "from lmcache.v1.compute.models.util import "
    f"VLLMModelTracker\n{REGISTER}",
    "imported from a package above": "from lmcache.v1.compute.models import "
    f"VLLMModelTracker\n{REGISTER}",
    "with another import that fails": f"from lmcache.no_such_module import f\n{REGISTER}",
    "behind an import that always fails": "try:\n    import lmcache.no_such_module\n"
    f"    {REGISTER}\nexcept ImportError:\n    pass",
    "with None registered first": f"VLLMModelTracker.register_model(ENGINE_NAME, None)\n{REGISTER}",
    "with a name bound later in the same method": f"{REGISTER}\n{CREATE}\nENGINE_NAME = 'mine'",
    "where the KV cache is allocated first": "self.model_runner.initialize_kv_cache("
    f"kv_cache_config)\n{REGISTER}",
    "with the connector given less": f"{REGISTER}\nensure_kv_transfer_initialized("
    "self.vllm_config)",
    "with the connector given more": f"{REGISTER}\nensure_kv_transfer_initialized("
    "self.vllm_config, kv_cache_config, None)",
    "with the connector given something else": f"{REGISTER}\nensure_kv_transfer_initialized("
    "self.vllm_config, self.model_runner)",
    "with the connector given the two the wrong way round": f"{REGISTER}\n"
    "ensure_kv_transfer_initialized(kv_cache_config, self.vllm_config)",
    "with self lost": f"{REGISTER}\nensure_kv_transfer_initialized(vllm_config, kv_cache_config)",
    "behind and": f"vllm.something() and {REGISTER}",
    "behind or": f"vllm.something() or {REGISTER}",
    "in one case of an expression": f"{REGISTER} if vllm.something() else None",
    "in a comprehension": f"[{REGISTER} for _ in vllm.things()]",
    "in a generator that nobody reads": f"later = ({REGISTER} for _ in (1,))",
    "after a break": f"while True:\n    break\n    {REGISTER}",
    "unwrapped under one more condition": "model = self.model_runner.model\n"
    "if hasattr(model, 'unwrap') and vllm.something():\n    model = model.unwrap()\n"
    + REGISTER_LOCAL,
    "unwrapped where it is not wrapped": "model = self.model_runner.model\n"
    "if hasattr(model, 'unwrap') == False:\n    model = model.unwrap()\n" + REGISTER_LOCAL,
    "a name bound anew with another": "model = self.model_runner.get_model()\n"
    f"model, other = self.model_runner, 1\n{REGISTER_LOCAL}",
    "a name bound anew in a loop": "model = self.model_runner.get_model()\n"
    f"for model in (self.model_runner,):\n    pass\n{REGISTER_LOCAL}",
    "a name bound anew by with": "model = self.model_runner.get_model()\n"
    f"with vllm.pool() as model:\n    pass\n{REGISTER_LOCAL}",
    "a name bound anew in an expression": "model = self.model_runner.get_model()\n"
    f"vllm.see(model := self.model_runner)\n{REGISTER_LOCAL}",
    "a name bound anew in a chain": "model = self.model_runner.get_model()\n"
    f"model = other = self.model_runner\n{REGISTER_LOCAL}",
    "where errors are suppressed": "from contextlib import suppress\n"
    f"with suppress(Exception):\n    self.no_such.thing = 1 / 0\n    {REGISTER}",
    "after a connector in an inner function": f"def go():\n    {CREATE}\ngo()\n{REGISTER}",
    "after a connector under another name": "create = ensure_kv_transfer_initialized\n"
    f"create(self.vllm_config, kv_cache_config)\n{REGISTER}",
    "after a failed import that never was one": "try:\n    import lmcache.v1.manager\n"
    f"    1 / 0\n    {REGISTER}\nexcept ZeroDivisionError:\n    pass",
}


@pytest.mark.parametrize("body", UNSEEN.values(), ids=UNSEEN.keys())
def test_what_a_run_refuses_the_static_form_refuses_too(body: str) -> None:
    text = _late(body)
    assert in_process_violations(text.encode(), None, [BARE_GET_MODEL, NESTED_DEEP], [PLAIN])
    assert not _judge(text).holds


UNBOUND_IMPORTS = {
    "for type checkers alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n{}",
    "for type checkers, by the module": "import typing\nif typing.TYPE_CHECKING:\n{}",
    "under a condition": "import os\nif os.environ.get('USE_LMCACHE'):\n{}",
    "in a loop that may have no round": "for _ in ():\n{}",
}


@pytest.mark.parametrize("under", UNBOUND_IMPORTS.values(), ids=UNBOUND_IMPORTS.keys())
def test_names_that_are_not_surely_imported_do_not_hold(under: str) -> None:
    stock, lmcache = IMPORTS.strip().splitlines()[:2], IMPORTS.strip().splitlines()[2:]
    inner = textwrap.indent("\n".join(lmcache), "    ")
    text = _late(REGISTER, "\n".join(stock) + "\n" + under.format(inner))
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])
    judgement = _judge(text)
    assert not judgement.holds
    assert "VLLMModelTracker, which is not defined there" in judgement.reason


@pytest.mark.parametrize(
    ("version", "load", "reason"),
    [
        (
            "0.10.0",
            f"{REGISTER}\nensure_kv_transfer_initialized(vllm_config)",
            "vllm_config, which",
        ),
        ("0.10.0", f"{REGISTER}\n{CREATE}", "kv_cache_config, which is not defined there"),
        ("0.10.0", f"{REGISTER}\nensure_kv_transfer_initialized()", "this release takes"),
        ("0.32.0", f"{REGISTER}\n{CREATE}", "kv_cache_config, which is not defined there"),
        ("0.32.0", f"{REGISTER}\nensure_kv_transfer_initialized(self.vllm_config)", "this release"),
    ],
)
def test_a_connector_created_in_load_model_with_what_is_not_there_does_not_hold(
    version: str, load: str, reason: str
) -> None:
    text = _early(load)
    early = version == "0.10.0"
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN], early=early)
    judgement = _judge(text, version)
    assert not judgement.holds
    assert reason in judgement.reason


HALF_DONE = {
    "registered, not deferred": (
        _early(REGISTER, "ensure_kv_transfer_initialized(vllm_config)"),
        "the model is registered, but only after the KV connector was created",
    ),
    "deferred, not registered": (
        _early("ensure_kv_transfer_initialized(self.vllm_config)"),
        "the KV connector waits for the model, but no model is registered with LMCache",
    ),
    "neither": (
        _early("pass", "ensure_kv_transfer_initialized(vllm_config)"),
        "the KV connector is created, and no model was registered with LMCache before",
    ),
    "under another name": (
        _early(
            REGISTER.replace("ENGINE_NAME", "'my-engine'")
            + "\nensure_kv_transfer_initialized(self.vllm_config)"
        ),
        "the model is registered under another name than LMCache's ENGINE_NAME",
    ),
    "another object": (
        _early(
            REGISTER.replace("self.model_runner.get_model()", "vllm.find_model()")
            + "\nensure_kv_transfer_initialized(self.vllm_config)"
        ),
        "what is registered can't be seen to be the model of model_runner.get_model()",
    ),
    "on some paths": (
        _early(
            f"if vllm.ready():\n    {REGISTER}\nensure_kv_transfer_initialized(self.vllm_config)"
        ),
        "the model is registered under a condition, and it can't be seen that this holds",
    ),
}


@pytest.mark.parametrize(("text", "reason"), HALF_DONE.values(), ids=HALF_DONE.keys())
def test_of_a_half_done_edit_the_half_that_is_missing_is_said(text: str, reason: str) -> None:
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN], early=True)
    judgement = _judge(text, "0.10.0")
    assert not judgement.holds
    assert judgement.reason.startswith(reason)


def test_a_release_newer_than_those_read_may_give_the_connector_more() -> None:
    text = _late(REGISTER).replace("kv_cache_config)\n", "kv_cache_config, self.rank)\n")
    assert "self.rank" in text
    assert not _judge(text, "0.33.0").holds
    assert _judge(text, "0.34.0").holds


def test_registration_before_the_model_is_loaded_does_not_hold() -> None:
    text = _late("pass").replace(
        "        self.model_runner.load", f"        {REGISTER}\n        self.model_runner.load"
    )
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])
    assert not _judge(text).holds


def test_a_name_bound_anew_at_module_level_does_not_hold() -> None:
    text = _late(REGISTER, IMPORTS + "ENGINE_NAME = 'mine'\n")
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])
    assert not _judge(text).holds


def test_the_workers_own_get_model_is_judged_by_what_it_gives() -> None:
    text = _late("VLLMModelTracker.register_model(ENGINE_NAME, self.get_model())")
    method = "    def get_model(self):\n        return self.model_runner.model\n\n"
    text = text.replace("    def load_model", method + "    def load_model")
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])
    assert not _judge(text).holds


def test_the_workers_own_get_model_may_ask_the_runner_for_the_bare_model() -> None:
    text = _late("VLLMModelTracker.register_model(ENGINE_NAME, self.get_model())")
    method = "    def get_model(self):\n        return self.model_runner.get_model()\n\n"
    text = text.replace("    def load_model", method + "    def load_model")
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN]) == []
    assert _judge(text).holds


def test_an_early_return_before_the_deferred_connector_does_not_hold() -> None:
    call = "ensure_kv_transfer_initialized(self.vllm_config)"
    text = _early(f"if vllm.dummy():\n    return\n{REGISTER}\n{call}")
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])
    assert not _judge(text, "0.10.0").holds


def test_a_guard_that_someone_made_always_false_is_not_proof() -> None:
    (file,) = planned(_late("pass", STOCK_IMPORTS).encode(), "0.32.0").changes
    assert file.after is not None
    text = file.after.decode()
    head = "def _kvpatch_uses_lmcache(vllm_config):\n"
    assert text.count(head) == 1
    broken = text.replace(head, f"{head}    return False\n")
    assert in_process_violations(broken.encode(), None, [WRAPPED], [PLAIN])
    found = planned(broken.encode(), "0.32.0", Provenance.OTHER)
    assert outcomes(found)["KV001"] is Outcome.FOREIGN


EARLY_STOCK = """
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized
import vllm


class Worker:
    def load_model(self):
        self.model_runner.load_model()


def init_worker_distributed_environment(vllm_config, rank):
    {}
"""


@pytest.mark.parametrize(
    "call",
    [
        "ensure_kv_transfer_initialized(vllm_config)  # a word on it",
        "ensure_kv_transfer_initialized(\n        vllm_config,  # a word on it\n    )",
    ],
)
def test_the_deferred_call_keeps_its_comments(call: str) -> None:
    after = written(planned(EARLY_STOCK.format(call).encode(), "0.10.0"))
    assert b"# a word on it" in after


@pytest.mark.parametrize(
    "call",
    [
        "if vllm.ready():\n        ensure_kv_transfer_initialized(vllm_config)",
        "for _ in ():\n        ensure_kv_transfer_initialized(vllm_config)",
        "if vllm.ready():\n        return\n    ensure_kv_transfer_initialized(vllm_config)",
    ],
)
def test_a_connector_created_under_a_condition_is_deferred_under_it_or_not_at_all(
    call: str,
) -> None:
    stock = EARLY_STOCK.format(call).encode()
    plan = planned(stock, "0.10.0")
    assert plan.refused or in_process_violations(written(plan), stock, [WRAPPED], [PLAIN]) == []


STOCK_IMPORTS = "from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized\n"


def test_judging_leaves_the_modules_as_they_were() -> None:
    stock, patched = ast.parse("a()\n"), ast.parse("if not _kvpatch_uses_lmcache(c):\n    a()\n")
    before = ast.dump(patched)
    stock_without_guard(stock, patched)
    registers_bare_model(patched, Version("0.32.0"))
    assert ast.dump(patched) == before


# Generated worker modules


@dataclass(frozen=True)
class Generated:
    """A worker module that could be a release's, and which release it stands for."""

    content: bytes
    version: str


SIMPLE = (
    "pass",
    "x = 1  # naïve, schön, 模型",
    "a.b(c); d.e()",
    'note = """several\n  lines\n\there"""',
    "total = (\n    1 +\n    2\n)",
    "value = 1 + \\\n    2",
    "# only a comment\ny = 2",
    "f = lambda: torch.zeros(1)",
    "items = [item for item in range(2)]",
    "assert True, 'never'",
    "del_me: int = 3",
    "import gc",
    "from vllm.utils import thing as other",
    "def inner():\n    return 1",
    "if torch.ready(): pass",
    "global_name = {'a': 1, **{}}",
)
NESTS = (
    "with torch.device(0):\n    {}",
    "with (\n    torch.device(0),\n    torch.pool() as p,\n):\n    {}",
    "if torch.ready():\n    {}",
    "if torch.ready():\n    pass\nelse:\n    {}",
    "if torch.ready():\n    pass\nelif torch.other():\n    {}\nelse:\n    pass",
    "try:\n    {}\nexcept ValueError:\n    pass",
    "try:\n    pass\nfinally:\n    {}",
    "try:\n    pass\nexcept ValueError:\n    pass\nelse:\n    {}",
    "for item in torch.items():\n    {}",
    "for item in (1,):\n    {}",
)


def _fill(nest: str, body: str) -> str:
    indent = "" if nest == "{}" else "    "
    return nest.replace("{}", body.replace("\n", f"\n{indent}"))


statements = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.tuples(st.sampled_from(NESTS), inner).map(lambda pair: _fill(*pair)),
    max_leaves=3,
)
bodies = st.lists(statements, max_size=3)
ends = st.sampled_from(["", "", "", "return", "return None", "if torch.x():\n    raise E"])
decorators = st.sampled_from(["", "", "@torch.inference_mode()\n", "@instrument(span_name='x')\n"])
SURE = ["{call}"] * 6 + ["# Why it is here.\n{call}"]
UNSURE = ["{call}\n{call}", "connector = {call}", "{call}; torch.done()", "torch.nothing()"]
KEPT = ["{call}  # and now", "{wide}"]
early_anchors = st.tuples(st.just("{}"), st.sampled_from(SURE + UNSURE))
late_anchors = st.tuples(
    st.sampled_from(["{}"] * 6 + list(NESTS)), st.sampled_from(SURE + UNSURE + KEPT)
)


def _method(name: str, parameters: str, body: list[str], decorator: str = "") -> str:
    inner = "\n".join(body) or "pass"
    return f"{decorator}def {name}({parameters}):\n" + textwrap.indent(
        inner, "    ", lambda line: bool(line.strip())
    )


@st.composite
def modules(draw: st.DrawFn) -> Generated:
    """Worker modules of both eras, in many shapes and encodings of text."""
    early = draw(st.booleans())
    nest, anchor = draw(early_anchors if early else late_anchors)
    arguments = "vllm_config" if early else "self.vllm_config, kv_cache_config"
    call = f"ensure_kv_transfer_initialized({arguments})"
    wide = f"ensure_kv_transfer_initialized(\n    {arguments},  # all of it\n)"
    creation = _fill(nest, anchor.format(call=call, wide=wide))
    load_body = [*draw(bodies), "self.model_runner.load_model()", *draw(bodies), draw(ends)]
    load = _method("load_model", "self", [line for line in load_body if line], draw(decorators))
    if draw(st.integers(0, 11)) == 0:
        load = "def load_model(self): self.model_runner.load_model()"
    at_anchor = [*draw(bodies), creation, *draw(bodies)]
    methods = [
        _method("init_device", "self", ["init_worker_distributed_environment(self.vllm_config, 0)"])
    ]
    environment = draw(bodies)
    if early:
        environment = at_anchor
        methods += [load, _method("initialize_from_config", "self, kv_cache_config", draw(bodies))]
    else:
        config = _method(
            "initialize_from_config", "self, kv_cache_config", at_anchor, draw(decorators)
        )
        methods += [load, config]
    methods += draw(
        st.lists(
            st.sampled_from(
                [
                    "async def watch(self):\n    async with self.lock:\n        await self.go()",
                    "def one_line(self): return 1",
                    "@property\ndef rank(self):\n    return 0",
                    "limit = 3",
                    "# A word between methods.",
                ]
            ),
            max_size=2,
        )
    )
    worker = "class Worker(WorkerBase):\n" + "\n\n".join(
        textwrap.indent(method, "    ", lambda line: bool(line.strip())) for method in methods
    )
    function = _method(
        "init_worker_distributed_environment", "vllm_config, rank", environment, draw(decorators)
    )
    parts = [worker, function]
    if draw(st.booleans()):
        parts.reverse()
    if draw(st.booleans()):
        parts.append("# The end, schön.")
    text = "\n\n\n".join([f'"""A worker."""\nimport torch\n{HEAD}', *parts]) + "\n"
    unit = draw(st.sampled_from(["    ", "    ", "  ", "\t"]))
    lines = [_reindented(line, unit) for line in text.split("\n")]
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    text = newline.join(lines)
    if draw(st.booleans()):
        text = text.rstrip("\r\n")
    content = text.encode()
    if draw(st.booleans()):
        content = codecs.BOM_UTF8 + content
    late = draw(st.sampled_from(["0.11.1", "0.20.0", "0.33.0", "7.0"]))
    version = draw(st.sampled_from(["0.8.5", "0.10.0", "0.11.0"])) if early else late
    return Generated(content, version)


HEAD = (
    "from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized\n"
    "from vllm.v1.worker.worker_base import WorkerBase\n"
    "from vllm.tracing import instrument"
)


def _reindented(line: str, unit: str) -> str:
    bare = line.lstrip(" ")
    depth, rest = divmod(len(line) - len(bare), 4)
    return unit * depth + " " * rest + bare


@settings(max_examples=60, deadline=None)
@given(modules())
def test_a_generated_module_is_patched_faithfully_or_refused_with_a_reason(
    module: Generated,
) -> None:
    compile(module.content, "<generated>", "exec")
    plan = planned(module.content, module.version)
    if plan.refused:
        assert plan.changes == ()
        assert all(patch.reason for patch in plan.refused)
        return
    after = written(plan)
    compile(after, "<patched>", "exec")

    before_lines, after_lines = module.content.splitlines(True), after.splitlines(True)
    _assert_every_line_kept(before_lines, after_lines)

    again = replanned(plan, module.version)
    assert again.changes == ()
    assert replanned(plan, module.version, thorough=True).files[0].after == after
    strange = planned(after, module.version, Provenance.OTHER)
    assert strange.changes == ()
    assert strange.refused == ()

    kinds = [WRAPPED, NESTED_ONLY]
    assert in_process_violations(after, module.content, kinds, [PLAIN]) == []
    assert other_violations(after, module.content, [OTHER]) == []


def _assert_every_line_kept(before: list[bytes], after: list[bytes]) -> None:
    """Only insertions, apart from the one call that is now a step further in."""
    bare = [line.lstrip() if b"ensure_kv_transfer" in line else line for line in after]
    wanted = [line.lstrip() if b"ensure_kv_transfer" in line else line for line in before]
    if not wanted[-1].endswith(b"\n") and wanted[-1] not in bare:
        wanted[-1] = wanted[-1] + (b"\r\n" if b"\r\n" in wanted[0] else b"\n")
    matcher = difflib.SequenceMatcher(None, wanted, bare, autojunk=False)
    assert {tag for tag, *_ in matcher.get_opcodes()} <= {"equal", "insert"}


@settings(max_examples=60, deadline=None)
@given(modules())
def test_a_generated_module_as_it_stands_holds_in_neither_form(module: Generated) -> None:
    judgement = registers_bare_model(ast.parse(module.content), Version(module.version))
    assert not judgement.holds
    early = Version(module.version) <= Version("0.11.0")
    assert in_process_violations(module.content, None, [WRAPPED], [PLAIN], early=early)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "register(self.model_runner.get_model())",
                "register(self.model_runner.model)",
                "ensure_kv_transfer_initialized(self.vllm_config)",
                "if vllm.x():\n    register(self.model_runner.get_model())",
                "if vllm.x():\n    return",
                "with vllm.x():\n    register(self.model_runner.get_model())",
                "pass",
            ]
        ),
        max_size=4,
    )
)
def test_what_the_static_form_accepts_of_hand_edits_a_run_accepts_too(body: list[str]) -> None:
    inner = "\n".join(body).replace("register(", "VLLMModelTracker.register_model(ENGINE_NAME, ")
    text = _late("pass").replace(
        "load_model()\n", "load_model()\n" + textwrap.indent(inner, "        ") + "\n"
    )
    static = _judge(text)
    found = in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])
    # Creating again does nothing in vLLM, nor does registering again in LMCache.
    again = (" creations, not", "another object than")
    real = [problem for problem in found if not any(map(problem.__contains__, again))]
    if static.holds:
        assert real == []
    else:
        assert real or "x()" in inner, static.reason
