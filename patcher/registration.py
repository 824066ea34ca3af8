"""The post-condition of model registration, read from any worker module, whoever edited it.

Over the worker's fixed order ``init_device`` (which calls ``init_worker_distributed_environment``),
``load_model``, ``initialize_from_config``: with the guard read as true, no KV connector is created
before LMCache's tracker was given the bare model; with it false, the module is the stock one
(:mod:`kvpatch.guard`). Paths on which importing LMCache itself fails are exempt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from packaging.version import Version

from .called import names_used
from .flow import State, Value
from .guard import GUARD, is_guard
from .names import type_checking_only
from .patch import Judgement

CREATE = "ensure_kv_transfer_initialized"
REGISTER = "register_model"
WORKER_ORDER = ("init_device", "load_model", "initialize_from_config")
ENGINE_NAME_HOME = "lmcache.integration.vllm.utils"
TRACKER_HOME = "lmcache.v1.compute.models.utils"
LAST_EARLY = Version("0.11.0")
"""Last release that creates the connector before the model, with the configuration alone."""

LAST_READ = Version("0.33.0")
"""Newest release whose connector call was read; a later one may pass more."""

LAST_BARE_ATTRIBUTE = Version("0.10.0")
"""Last release in which ``model_runner.model`` is never a graph wrapper (0.10.1 wraps it)."""

_CREATOR = "creator"
_VLLM_CONFIG, _CACHE_CONFIG = "vllm config", "kv cache config"
_CREATED, _LOADED, _EXEMPT, _CACHED = "created", "loaded", "exempt", "cache allocated"
_BARE, _WRAPPED = "registered bare", "registered wrapped"
_STRANGE = "registered something else"
_LITERAL = "another name"
_EARLY = "the KV connector is created, and no model was registered with LMCache before"
_NEVER = "on some path nothing creates the KV connector"
_UNLOADED = "the model is registered before it is loaded"
_NOT_DEFERRED = (
    "the model is registered, but only after the KV connector was created: "
    "the connector asks for it too early"
)
_UNREGISTERED = "the KV connector waits for the model, but no model is registered with LMCache"
_SOMETIMES = (
    "the model is registered under a condition, and it can't be seen that this holds wherever the "
    "KV connector is created"
)
_OTHER_NAME = "the model is registered under another name than LMCache's ENGINE_NAME"
_OTHER_OBJECT = "what is registered can't be seen to be the model of model_runner.get_model()"
_AFTER_CACHE = (
    "the KV connector is created after the KV cache was allocated, so it never gets the cache"
)
_LATE_WRAPPED = (
    "the model that is registered is model_runner.model, which CUDA graphs wrap in this release, "
    "perhaps in layers: LMCache will stop with 'Model type CUDAGraphWrapper is not supported'"
)
_KNOWN = tuple(
    f"{home}.{name}"
    for home, name in ((TRACKER_HOME, "VLLMModelTracker"), (ENGINE_NAME_HOME, "ENGINE_NAME"))
)


class _Registration:
    """What the names and calls of a worker module mean for registration."""

    def __init__(self, module: ast.Module, version: Version) -> None:
        release = Version(version.base_version)
        self._attribute = "bare model" if release <= LAST_BARE_ATTRIBUTE else "wrapped model"
        late = release > LAST_EARLY
        self._wanted = (_VLLM_CONFIG, _CACHE_CONFIG) if late else (_VLLM_CONFIG,)
        self._may_take_more = release > LAST_READ
        self._guarded = any(is_guard(node) for node in module.body)
        self._get_model = _returned_by(module, "get_model")
        self.violations: list[str] = []
        self.created = False
        self._missed: list[str] = []
        self._unready: set[frozenset[str]] = set()
        self._ready = False

    def relevant(self, name: str) -> bool:
        return name in (CREATE, REGISTER, _CREATOR)

    def imported(self, module: str, name: str) -> Value:
        if name == CREATE:
            return _CREATOR
        if module.partition(".")[0] != "lmcache":
            return None
        path = f"{module}.{name}".rstrip(".")
        if path in _KNOWN:
            return ("tracker", "engine name")[_KNOWN.index(path)]
        if not any(known.startswith(f"{path}.") for known in _KNOWN):
            self.violate(f"it imports {path}, and it can't be seen that LMCache has that")
            return None
        return f"module {path}"

    def import_fails(self, state: State, modules: Sequence[str]) -> State:
        lmcache = any(module.partition(".")[0] == "lmcache" for module in modules)
        return state.add(_EXEMPT) if lmcache else state

    def value(self, node: ast.expr, state: State) -> Value:
        match node:
            case ast.Constant(value=str(text)):
                return "engine name" if text == "vllm-instance" else _LITERAL
            case ast.Name(id=name):
                return _CREATOR if name == CREATE else state.value(name)
            case ast.NamedExpr(value=inner):
                return self.value(inner, state)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                if (taken := self._always(test, state)) is not None:
                    return self.value(body if taken else orelse, state)
                return _worse(self.value(body, state), self.value(orelse, state))
            case ast.Attribute(attr=attribute) if attribute == CREATE:
                return _CREATOR
            case ast.Attribute(value=ast.Name(id="self"), attr="model_runner"):
                return "runner"
            case ast.Attribute(value=ast.Name(id="self"), attr="vllm_config"):
                return _VLLM_CONFIG
            case ast.Attribute(value=inner, attr=attribute):
                return self._attribute_value(self.value(inner, state), attribute)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="get_model")):
                return self.value(self._get_model, State()) if self._get_model else None
            case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments):
                if node.keywords:
                    return None
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
        if owner == "runner" and method == "get_model" and not arguments:
            return "bare model"
        if owner == "wrapped model" and method == "unwrap" and not arguments:
            # One layer less: only asking until nothing is left to unwrap says that it is bare.
            return "wrapped model"
        reads_tracker = (owner, method) in (("tracked models", "get"), ("tracker", "get_model"))
        if reads_tracker and arguments[:1] == ["engine name"]:
            return "tracked model"
        return None

    def call(self, node: ast.Call, state: State) -> State:
        if self.value(node.func, state) == _CREATOR:
            return self._create(node, state)
        if not isinstance(node.func, ast.Attribute):
            return state
        owner, method = self.value(node.func.value, state), node.func.attr
        if owner == "runner" and method == "load_model":
            return state.add(_LOADED)
        if owner == "runner" and method == "initialize_kv_cache":
            return state.add(_CACHED)
        if owner == "tracker" and method == REGISTER:
            values = self._given(node, ("instance_id", "vllm_model"), state)
            if len(values) == 2:
                return self._register(values["instance_id"], values["vllm_model"], state)
        return state

    def _given(
        self, node: ast.Call, parameters: Sequence[str], state: State
    ) -> Mapping[str, Value]:
        """What is known of a call's arguments, by parameter; empty where it does not take them."""
        given = dict(zip(parameters, node.args, strict=False))
        named = {word.arg: word.value for word in node.keywords if word.arg is not None}
        starred = any(isinstance(item, ast.Starred) for item in node.args)
        if starred or len(named) < len(node.keywords) or given.keys() & named.keys():
            return {}
        surplus = len(node.args) > len(parameters) or not named.keys() <= set(parameters)
        if surplus and not (parameters[0] == "vllm_config" and self._may_take_more):
            return {}
        given |= named
        return {key: self.value(value, state) for key, value in given.items()}

    def _create(self, node: ast.Call, state: State) -> State:
        self.created = True
        names = ("vllm_config", "kv_cache_config")[: len(self._wanted)]
        if tuple(self._given(node, names, state).get(name) for name in names) != self._wanted:
            self.violate(
                f"the KV connector is created by {ast.unparse(node)}, where this release "
                f"takes {CREATE}({', '.join(names)})"
            )
        if _CREATED in state.facts:
            return state
        if _CACHED in state.facts:
            self.violate(_AFTER_CACHE)
        if _WRAPPED in state.facts:
            self.violate(_LATE_WRAPPED)
        elif state.facts & {_EXEMPT, _BARE}:
            self._ready |= _BARE in state.facts
        else:
            self._unready.add(state.facts)
        return state.add(_CREATED)

    def _register(self, name: Value, model: Value, state: State) -> State:
        # The tracker keeps the first of a name; later ones change nothing.
        if state.facts & {_BARE, _WRAPPED, _STRANGE}:
            return state
        if name == _LITERAL:
            self._missed.append(_OTHER_NAME)
            return state
        if name != "engine name" or model not in ("bare model", "wrapped model"):
            self._missed.append(_OTHER_OBJECT if name == "engine name" else _OTHER_NAME)
            return state.add(_STRANGE)
        if _LOADED not in state.facts:
            self.violate(_UNLOADED)
        if _CREATED in state.facts:
            self._missed.append(_NOT_DEFERRED)
        return state.add(_BARE if model == "bare model" else _WRAPPED)

    def settle(self) -> None:
        """Say of the connector created without a registered model what comes nearest to why."""
        if not self._unready or _LATE_WRAPPED in self.violations:
            return
        if self._ready:
            self.violate(_SOMETIMES)
        elif self._missed:
            self.violate(self._missed[0])
        elif len(self._wanted) == 1 and all(_LOADED in facts for facts in self._unready):
            self.violate(_UNREGISTERED)
        else:
            self.violate(_EARLY)

    def violate(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)

    def test(self, node: ast.expr, state: State) -> Iterable[tuple[bool, State]]:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return [(not taken, known) for taken, known in self.test(inner, state)]
            case ast.Call(func=ast.Name(id=name)) if name == GUARD and self._guarded:
                return [(True, state)]
            case ast.Name() | ast.Attribute() if type_checking_only(node):
                return [(False, state)]
            case ast.Constant(value=value):
                return [(bool(value), state)]
            case ast.Compare(
                left=left,
                ops=[ast.Is() | ast.IsNot() as operator],
                comparators=[ast.Constant(value=None)],
            ) if self._imported(left, state):
                return [(isinstance(operator, ast.IsNot), state)]
            case ast.Name() if self._imported(node, state):
                return [(True, state)]
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
                sides = {self.value(left, state), self.value(right, state)}
                if sides == {"tracked model", "bare model"}:
                    return [(True, state.add(_BARE)), (False, state)]
        if (taken := self._always(node, state)) is not None:
            return [(taken, state)]
        asked = asked_to_unwrap(node)
        known = state.value(asked) if asked is not None else None
        if asked is not None and known == "wrapped model":
            return [(True, state), (False, state.bind(asked, "bare model"))]
        if known == "bare model":
            return [(False, state)]
        return [(True, state), (False, state)]

    def _always(self, node: ast.expr, state: State) -> bool | None:
        """What a test comes to whenever it is made; None where that is not known."""
        match node:
            case ast.Call(
                func=ast.Name(id="hasattr"), args=[subject, ast.Constant(value="get_model")]
            ) if self.value(subject, state) == "runner":
                # Every release from 0.8.5 on has it.
                return True
        return None

    def _imported(self, node: ast.expr, state: State) -> bool:
        return self.value(node, state) in ("tracker", "engine name")


def asked_to_unwrap(test: ast.expr) -> str | None:
    """The name of which a test asks, and nothing else, whether it has an ``unwrap``."""
    match test:
        case ast.Call(func=ast.Name(id="callable"), args=[inner]):
            return asked_to_unwrap(inner)
        case (
            ast.Call(func=ast.Name(id="hasattr"), args=[subject, ast.Constant(value="unwrap")])
            | ast.Call(
                func=ast.Name(id="getattr"),
                args=[subject, ast.Constant(value="unwrap"), ast.Constant(value=None)],
            )
        ):
            match subject:
                case ast.Name(id=name):
                    return name
                case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=name)]):
                    return name
    return None


def _worker_method(module: ast.Module, name: str) -> ast.FunctionDef | None:
    for owner in module.body:
        if isinstance(owner, ast.ClassDef) and owner.name == "Worker":
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return node
    return None


def _returned_by(module: ast.Module, name: str) -> ast.expr | None:
    """What a worker's method returns, where that is all it does."""
    method = _worker_method(module, name)
    match method.body if method else []:
        case [ast.Return(value=value)] | [ast.Expr(value=ast.Constant()), ast.Return(value=value)]:
            return value
    return None


def registers_bare_model(module: ast.Module, version: Version) -> Judgement:
    """Judge whether the bare model is registered before the connector is created.

    Args:
        module: ``vllm/v1/worker/gpu_worker.py``, parsed.
        version: the vLLM release, which says whether ``model_runner.model`` is bare.
    """
    from .trace import Tracer, UnreadableError

    meaning = _Registration(module, version)
    loading = _worker_method(module, "load_model")
    start = State()
    if loading is None or "load_model" not in names_used(loading):
        start = start.add(_LOADED)
    states = {start}
    try:
        tracer = Tracer(module, "Worker", meaning)
        for method in WORKER_ORDER:
            arguments = [_CACHE_CONFIG] if method == "initialize_from_config" else []
            states = tracer.run(method, states, arguments)
    except UnreadableError as error:
        return Judgement(False, f"the worker can't be followed: {error}")
    if not meaning.created:
        return Judgement(False, f"nothing in {', '.join(WORKER_ORDER)} creates the KV connector")
    if any(not state.facts & {_CREATED, _EXEMPT} for state in states):
        meaning.violate(_NEVER)
    meaning.settle()
    for name, function in tracer.unbound:
        meaning.violate(f"{function} uses {name}, which is not defined there")
    if meaning.violations:
        return Judgement(False, "; ".join(meaning.violations))
    return Judgement(True, "the bare model is registered before the KV connector is created")


def _worse(one: Value, other: Value) -> Value:
    if one == other:
        return one
    return "wrapped model" if {one, other} == {"bare model", "wrapped model"} else None
