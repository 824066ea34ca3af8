"""The post-condition of model registration, read from any worker module, whoever edited it.

Over the worker's fixed order ``init_device`` (which calls ``init_worker_distributed_environment``),
``load_model``, ``initialize_from_config``: with the guard read as true, no KV connector is created
before LMCache's tracker was given the bare model; with it false, the module is the stock one.
Paths on which importing LMCache itself fails are exempt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from packaging.version import Version

from .patch import Judgement
from .trace import State, TooManyPathsError, Tracer, Value

GUARD = "_kvpatch_uses_lmcache"
"""The name of the inserted function that tells whether LMCache's connector is configured."""

PREFIX = "_kvpatch_"
CREATE = "ensure_kv_transfer_initialized"
REGISTER = "register_model"
WORKER_ORDER = ("init_device", "load_model", "initialize_from_config")
ENGINE_NAME_HOME = "lmcache.integration.vllm.utils"
LAST_BARE_ATTRIBUTE = Version("0.10.0")
"""Last release in which ``model_runner.model`` is never a graph wrapper (0.10.1 wraps it)."""

_CREATED, _BARE, _WRAPPED, _EXEMPT = "created", "registered bare", "registered wrapped", "exempt"
_EARLY = "the KV connector is created before any model is registered with LMCache"
_LATE_WRAPPED = (
    "the model that is registered is model_runner.model, which CUDA graphs wrap in this release: "
    "LMCache will stop with 'Model type CUDAGraphWrapper is not supported'"
)


class _Registration:
    """What the names and calls of a worker module mean for registration."""

    def __init__(self, version: Version) -> None:
        bare = Version(version.base_version) <= LAST_BARE_ATTRIBUTE
        self._attribute = "bare model" if bare else "wrapped model"
        self.violations: list[str] = []
        self.created = False

    def relevant(self, name: str) -> bool:
        return name in (CREATE, REGISTER)

    def imported(self, module: str, name: str) -> Value:
        if module.partition(".")[0] != "lmcache":
            return None
        if name == "VLLMModelTracker":
            return "tracker"
        if name == "ENGINE_NAME":
            return "engine name" if module == ENGINE_NAME_HOME else None
        return f"module {module}.{name}".rstrip(".")

    def import_fails(self, state: State, modules: Sequence[str]) -> State:
        lmcache = any(module.partition(".")[0] == "lmcache" for module in modules)
        return state.add(_EXEMPT) if lmcache else state

    def value(self, node: ast.expr, state: State) -> Value:
        match node:
            case ast.Constant(value="vllm-instance"):
                return "engine name"
            case ast.Name(id=name):
                return state.value(name)
            case ast.NamedExpr(value=inner):
                return self.value(inner, state)
            case ast.IfExp(body=body, orelse=orelse):
                return _worse(self.value(body, state), self.value(orelse, state))
            case ast.Attribute(value=ast.Name(id="self"), attr="model_runner"):
                return "runner"
            case ast.Attribute(value=inner, attr=attribute):
                return self._attribute_value(self.value(inner, state), attribute)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="get_model")):
                return "bare model"
            case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments):
                known = [self.value(argument, state) for argument in arguments]
                return self._method_value(self.value(inner, state), method, known)
        return None

    def _attribute_value(self, owner: Value, attribute: str) -> Value:
        if owner == "runner" and attribute == "model":
            return self._attribute
        if owner == "tracker" and attribute == "_vllm_models":
            return "tracked models"
        if owner is not None and owner.startswith("module "):
            return self.imported(owner.removeprefix("module "), attribute)
        return None

    def _method_value(self, owner: Value, method: str, arguments: Sequence[Value]) -> Value:
        if owner == "runner" and method == "get_model":
            return "bare model"
        if owner in ("bare model", "wrapped model") and method == "unwrap":
            return "bare model"
        reads_tracker = (owner, method) in (("tracked models", "get"), ("tracker", "get_model"))
        if reads_tracker and arguments[:1] == ["engine name"]:
            return "tracked model"
        return None

    def call(self, node: ast.Call, state: State) -> State:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        if isinstance(node.func, ast.Name):
            name = node.func.id
        if name == CREATE:
            return self._create(state)
        if name == REGISTER and isinstance(node.func, ast.Attribute):
            words = {word.arg: word.value for word in node.keywords}
            given = dict(zip(("instance_id", "vllm_model"), node.args, strict=False)) | words
            values = {key: self.value(value, state) for key, value in given.items() if key}
            owner = self.value(node.func.value, state)
            if owner == "tracker" and values.get("instance_id") == "engine name":
                return self._register(values.get("vllm_model"), state)
        return state

    def _create(self, state: State) -> State:
        self.created = True
        if not state.facts & {_CREATED, _EXEMPT, _BARE}:
            self._violate(_LATE_WRAPPED if _WRAPPED in state.facts else _EARLY)
        return state.add(_CREATED)

    def _register(self, model: Value, state: State) -> State:
        if state.facts & {_BARE, _WRAPPED}:
            return state
        if model == "bare model":
            return state.add(_BARE)
        return state.add(_WRAPPED) if model == "wrapped model" else state

    def _violate(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)

    def test(self, node: ast.expr, state: State) -> Iterable[tuple[bool, State]]:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return [(not taken, known) for taken, known in self.test(inner, state)]
            case ast.Call(func=ast.Name(id=name)) if name == GUARD:
                return [(True, state)]
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return [(False, state)]
            case ast.Constant(value=value):
                return [(bool(value), state)]
            case ast.Compare(
                left=left, ops=[ast.Is() | ast.IsNot() as operator], comparators=[right]
            ) if (
                isinstance(right, ast.Constant)
                and right.value is None
                and self._imported(left, state)
            ):
                return [(isinstance(operator, ast.IsNot), state)]
            case ast.Name() if self._imported(node, state):
                return [(True, state)]
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
                sides = {self.value(left, state), self.value(right, state)}
                if sides == {"tracked model", "bare model"}:
                    return [(True, state.add(_BARE)), (False, state)]
        return [(True, state), (False, self._unwrapped(node, state))]

    def _imported(self, node: ast.expr, state: State) -> bool:
        return self.value(node, state) in ("tracker", "engine name")

    @staticmethod
    def _unwrapped(test: ast.expr, state: State) -> State:
        if not any(
            isinstance(node, ast.Constant) and node.value == "unwrap" for node in ast.walk(test)
        ):
            return state
        for node in ast.walk(test):
            if isinstance(node, ast.Name) and state.value(node.id) == "wrapped model":
                state = state.bind(node.id, "bare model")
        return state


def registers_bare_model(module: ast.Module, version: Version) -> Judgement:
    """Judge whether the bare model is registered before the connector is created.

    Args:
        module: ``vllm/v1/worker/gpu_worker.py``, parsed.
        version: the vLLM release, which says whether ``model_runner.model`` is bare.
    """
    meaning = _Registration(version)
    tracer = Tracer(module, "Worker", meaning)
    states = {State()}
    try:
        for method in WORKER_ORDER:
            states = tracer.run(method, states)
    except TooManyPathsError:
        return Judgement(False, "the worker has too many paths to follow")
    if meaning.violations:
        return Judgement(False, "; ".join(meaning.violations))
    if not meaning.created:
        return Judgement(False, f"nothing in {', '.join(WORKER_ORDER)} creates the KV connector")
    return Judgement(True, "the bare model is registered before the KV connector is created")


def stock_without_guard(stock: ast.Module, patched: ast.Module) -> Judgement:
    """Judge whether the patched module is the stock one wherever the guard reads false."""
    if _same(patched, stock):
        return Judgement(True, "without LMCache's connector the module is the stock one")
    return Judgement(False, "without LMCache's connector the module is not the stock one")


def _without_guard(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements left where the guard reads false; lists inside them stay as they are."""
    kept: list[ast.stmt] = []
    for node in body:
        match node:
            case ast.FunctionDef(name=name) if name.startswith(PREFIX):
                continue
            case ast.If(test=ast.Call(func=ast.Name(id=name)), orelse=orelse) if name == GUARD:
                kept += _without_guard(orelse)
            case ast.If(
                test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id=name))), body=inner
            ) if name == GUARD:
                kept += _without_guard(inner)
            case _:
                kept.append(node)
    return kept


def _same(patched: object, stock: object) -> bool:
    """Whether a patched part is the stock one, positions and guarded parts apart."""
    if patched.__class__ is not stock.__class__:
        return False
    if isinstance(patched, ast.AST):
        return all(
            _same(getattr(patched, field, None), getattr(stock, field, None))
            for field in patched._fields
        )
    if isinstance(patched, list) and isinstance(stock, list):
        left = _without_guard(patched) if patched and isinstance(patched[0], ast.stmt) else patched
        return len(left) == len(stock) and all(map(_same, left, stock))
    return patched == stock


def _worse(one: Value, other: Value) -> Value:
    if one == other:
        return one
    return "wrapped model" if {one, other} == {"bare model", "wrapped model"} else None
