"""Create LMCache's KV connector after the model is loaded and registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpatch.guard import GUARD, GUARD_SOURCE, stock_without_guard
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Need, Patch, Refusal, Target
from kvpatch.registration import registers_bare_model

from .kv001_register_model import DEFERRED, REGISTER_MODEL, WORKER, without_edits

if TYPE_CHECKING:
    import libcst as cst

NOT_YET = f"""
# kvpatch KV002: LMCache's connector is created in Worker.load_model, when the model exists.
if not {GUARD}(vllm_config):
    pass
"""

NOW = f"""
# kvpatch KV002: the model is registered, so LMCache's connector can be created.
if {GUARD}(self.vllm_config):
    ensure_kv_transfer_initialized(self.vllm_config)
"""


def defer_connector(module: cst.Module) -> cst.Module:
    """Move LMCache's connector from ``init_worker_distributed_environment`` to ``load_model``.

    Raises:
        Refusal: where the anchors are not there exactly once, or KV001 is not in place.
    """
    import libcst as cst
    from kvpatch import rewrite

    if not rewrite.defines(module, GUARD):
        raise Refusal(Outcome.CONFLICT, "KV002 needs KV001 in the same file")

    def guarded(line: cst.SimpleStatementLine, call: cst.Call) -> list[rewrite.Statement]:
        match call.args:
            case [cst.Arg(value=cst.Name(value="vllm_config"), keyword=None, star="")]:
                return [rewrite.under(rewrite.statement(module, NOT_YET), line)]
        raise Refusal(
            Outcome.MISSING,
            "ensure_kv_transfer_initialized is called with other arguments than (vllm_config)",
        )

    def deferred(function: cst.FunctionDef) -> cst.FunctionDef:
        rewrite.require_unconditional(function, "ensure_kv_transfer_initialized")
        return rewrite.replace_call(function, "ensure_kv_transfer_initialized", guarded)

    module = rewrite.edit_function(module, "init_worker_distributed_environment", deferred)
    now = rewrite.statement(module, NOW)
    return rewrite.edit_function(
        module, "Worker.load_model", lambda function: rewrite.append_statement(function, now)
    )


PATCH = Patch(
    id="KV002",
    distribution="vllm",
    targets=(Target(WORKER, DEFERRED, defer_connector),),
    versions=DEFERRED,
    why="Up to vLLM 0.11.0 the KV connector is created before the model exists, so LMCache's "
    "blender can't find it.",
    how="Creates LMCache's in-process connector at the end of Worker.load_model, after "
    "registration (a MultiConnector that holds it moves as a whole); every other connector is "
    "created where it always was.",
    upstream="https://github.com/vllm-project/vllm/pull/25712",
    retire_when="Support for vLLM 0.11.0 and older ends; 0.11.1 creates it later by itself.",
    post_condition=registers_bare_model,
    faithful=stock_without_guard,
    take_out=without_edits,
    cures=("H",),
    needs=(Need("KV001", DEFERRED),),
    proved="run on a CPU: vLLM 0.11.0 with LMCache 0.3.9.post2",
)

_EARLY_STOCK = '''
from vllm.distributed import init_distributed_environment
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def init_device(self):
        init_worker_distributed_environment(self.vllm_config, self.rank)

    def load_model(self):
        with self.pool():
            self.model_runner.load_model()


def init_worker_distributed_environment(vllm_config, rank):
    """Initialize the distributed environment."""
    init_distributed_environment(rank)

    ensure_kv_transfer_initialized(vllm_config)
'''

_EARLY_PATCHED = (
    f'''
from vllm.distributed import init_distributed_environment
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def init_device(self):
        init_worker_distributed_environment(self.vllm_config, self.rank)

    def load_model(self):
        with self.pool():
            self.model_runner.load_model()

        # kvpatch KV001: LMCache's connector asks its tracker for the model when it is created.
        if {GUARD}(self.vllm_config):
            _kvpatch_register_model(self.model_runner)
        # kvpatch KV002: the model is registered, so LMCache's connector can be created.
        if {GUARD}(self.vllm_config):
            ensure_kv_transfer_initialized(self.vllm_config)


def init_worker_distributed_environment(vllm_config, rank):
    """Initialize the distributed environment."""
    init_distributed_environment(rank)

    # kvpatch KV002: LMCache's connector is created in Worker.load_model, when the model exists.
    if not {GUARD}(vllm_config):
        ensure_kv_transfer_initialized(vllm_config)

'''
    + GUARD_SOURCE
    + "\n"
    + REGISTER_MODEL
)

_BY_HAND = """
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
from vllm.distributed import init_distributed_environment
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def init_device(self):
        init_worker_distributed_environment(self.vllm_config, self.rank)

    def load_model(self):
        with self.pool():
            self.model_runner.load_model()
        VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.model)
        ensure_kv_transfer_initialized(self.vllm_config)


def init_worker_distributed_environment(vllm_config, rank):
    init_distributed_environment(rank)
    # ensure_kv_transfer_initialized(vllm_config)
"""

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "defers the connector until the model is registered",
        "0.10.0",
        _EARLY_STOCK,
        after=_EARLY_PATCHED,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves releases alone that create the connector after the model",
        "0.11.1",
        _EARLY_STOCK,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees LMCache's README applied by hand where the attribute is the bare model",
        "0.10.0",
        _BY_HAND,
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the connector is created with other arguments",
        "0.10.0",
        _EARLY_STOCK.replace("initialized(vllm_config)", "initialized(vllm_config, rank)"),
        outcome=Outcome.MISSING,
        reason="other arguments",
    ),
)
