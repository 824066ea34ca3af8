"""Register the model with LMCache before the KV connector asks for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvpatch.edits import without_registration
from kvpatch.guard import GUARD, GUARD_SOURCE, stock_without_guard
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Need, Patch, Target
from kvpatch.registration import registers_bare_model

if TYPE_CHECKING:
    import libcst as cst

WORKER = "vllm/v1/worker/gpu_worker.py"
DEFERRED = ">=0.8.5,<0.11.1"
"""Releases that build the KV connector before the model exists."""

REGISTER_MODEL = '''
def _kvpatch_register_model(model_runner):
    """Give LMCache's tracker the bare model, before LMCache's connector asks it for one."""
    import sys

    try:
        from lmcache.integration.vllm.utils import ENGINE_NAME
        from lmcache.v1.compute.models.utils import VLLMModelTracker
    except Exception as error:
        if not getattr(_kvpatch_register_model, "warned", False):
            _kvpatch_register_model.warned = True
            from vllm.logger import init_logger

            init_logger(__name__).warning(
                f"kvpatch: LMCache can't be imported, so it is not told of the model: {error!r}"
            )
        return

    model = model_runner.get_model() if hasattr(model_runner, "get_model") else model_runner.model
    while callable(getattr(type(model), "unwrap", None)):
        model = model.unwrap()
    registered = VLLMModelTracker._vllm_models.get(ENGINE_NAME)
    if registered is model:
        return
    if registered is not None:
        blend = sys.modules.get("lmcache.v1.compute.blend.utils")
        if blend is not None and ENGINE_NAME in blend.LMCBlenderBuilder._blenders:
            raise RuntimeError(
                f"kvpatch: LMCache's blender for {ENGINE_NAME} was built on another model; "
                "restart vLLM to blend with the new one"
            )
        del VLLMModelTracker._vllm_models[ENGINE_NAME]
    VLLMModelTracker.register_model(ENGINE_NAME, model)
'''

REGISTER_CALL = f"""
# kvpatch KV001: LMCache's connector asks its tracker for the model when it is created.
if {GUARD}(self.vllm_config):
    _kvpatch_register_model(self.model_runner)
"""


def register_before_connector(module: cst.Module) -> cst.Module:
    """Register in ``Worker.initialize_from_config``, just before the connector is created.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import rewrite

    call = rewrite.statement(module, REGISTER_CALL)
    module = rewrite.edit_function(
        module,
        "Worker.initialize_from_config",
        lambda function: rewrite.replace_call(
            function,
            "ensure_kv_transfer_initialized",
            lambda line, _: [rewrite.spaced(call, 1), line],
        ),
    )
    return _with_functions(module)


def register_after_loading(module: cst.Module) -> cst.Module:
    """Register at the end of ``Worker.load_model``, on its base level.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    from kvpatch import rewrite

    call = rewrite.spaced(rewrite.statement(module, REGISTER_CALL), 1)
    module = rewrite.edit_function(
        module, "Worker.load_model", lambda function: rewrite.append_statement(function, call)
    )
    return _with_functions(module)


def _with_functions(module: cst.Module) -> cst.Module:
    from kvpatch import rewrite

    return rewrite.append_function(rewrite.append_function(module, GUARD_SOURCE), REGISTER_MODEL)


without_edits = partial(without_registration, own=(GUARD_SOURCE, REGISTER_MODEL))


PATCH = Patch(
    id="KV001",
    distribution="vllm",
    targets=(
        Target(WORKER, DEFERRED, register_after_loading),
        Target(WORKER, ">=0.11.1", register_before_connector),
    ),
    versions=">=0.8.5",
    why="Nothing registers vLLM's model with LMCache's tracker, so with blending enabled the "
    "engine dies at start with 'vllm model for vllm-instance not found'.",
    how="Gives the bare model to LMCache's tracker, under LMCache's own engine name, just before "
    "the KV connector is created (up to 0.11.0: at the end of Worker.load_model), and only where "
    "LMCache's in-process connector is configured.",
    upstream="https://github.com/LMCache/LMCache/issues/4131",
    retire_when="A vLLM or LMCache release registers the model itself.",
    post_condition=registers_bare_model,
    faithful=stock_without_guard,
    take_out=without_edits,
    cures=("H",),
    needs=(Need("KV002", DEFERRED),),
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6, vLLM 0.11.1.post2 with LMCache "
    "0.3.9.post2",
)

_LATE_STOCK = '''
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def initialize_from_config(self, kv_cache_config):
        """Allocate the KV cache."""

        # The connector needs the cache config.
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)

        self.model_runner.initialize_kv_cache(kv_cache_config)
'''

_LATE_PATCHED = (
    f'''
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def initialize_from_config(self, kv_cache_config):
        """Allocate the KV cache."""

        # kvpatch KV001: LMCache's connector asks its tracker for the model when it is created.
        if {GUARD}(self.vllm_config):
            _kvpatch_register_model(self.model_runner)

        # The connector needs the cache config.
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)

        self.model_runner.initialize_kv_cache(kv_cache_config)

'''
    + GUARD_SOURCE
    + "\n"
    + REGISTER_MODEL
)

_UPSTREAM = """
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def initialize_from_config(self, kv_cache_config):
        VLLMModelTracker.register_model(ENGINE_NAME, {model})
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
"""

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "registers just before the connector is created",
        "0.32.0",
        _LATE_STOCK,
        after=_LATE_PATCHED,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release without a KV connector in the V1 worker alone",
        "0.8.4",
        "class Worker:\n    def load_model(self):\n        self.model_runner.load_model()\n",
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees that the bare model is registered already",
        "0.32.0",
        _UPSTREAM.format(model="self.model_runner.get_model()"),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the connector is created twice",
        "0.32.0",
        _LATE_STOCK + "        ensure_kv_transfer_initialized(self.vllm_config, None)\n",
        outcome=Outcome.AMBIGUOUS,
        reason="in 2 places",
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the anchor is gone, and names what came nearest",
        "0.32.0",
        _LATE_STOCK.replace("transfer_initialized", "transfer_started"),
        outcome=Outcome.MISSING,
        reason="ensure_kv_transfer_started",
    ),
)
