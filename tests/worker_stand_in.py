"""Runs the functions of a worker module with recording stand-ins for all that it imports.

This is the executing form of the post-condition. It shares no code with the transformers or with
the static form: it knows nothing of syntax, only what the functions do when they are called in the
worker's fixed order ``init_worker_distributed_environment``, ``load_model``,
``initialize_from_config``.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

WORKER_NAME = "vllm.v1.worker.gpu_worker"
TRACKER_HOME = "lmcache.v1.compute.models.utils"
BLENDER_HOME = "lmcache.v1.compute.blend.utils"
ENGINE_NAME_HOME = "lmcache.integration.vllm.utils"
OTHER_ENGINE_NAME_HOME = "lmcache.v1.manager"
ENGINE_NAME = "name-of-this-release"

_REAL = frozenset(
    {"__future__", "abc", "collections", "contextlib", "dataclasses"}
    | {"enum", "functools", "os", "types", "typing"}
)

Event = tuple[str, ...]


class Anything:
    """Stands for any name of a package that is not there; records what is done with it."""

    _path: str
    _world: World

    def __init__(self, path: str, world: World) -> None:
        self.__dict__["_path"] = path
        self.__dict__["_world"] = world

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = self._world.special(name)
        if value is None:
            value = Anything(f"{self._path}.{name}", self._world)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        self._world.record("set", f"{self._path}.{name}", value)
        self.__dict__[name] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and not kwargs
        if decorates and isinstance(args[0], (types.FunctionType, type, classmethod, staticmethod)):
            return args[0]
        self._world.record("call", self._path, *args, **kwargs)
        return Anything(f"{self._path}()", self._world)

    def __enter__(self) -> Anything:
        self._world.record("enter", self._path)
        return self

    def __exit__(self, *exc: object) -> None:
        self._world.record("exit", self._path)

    def __bool__(self) -> bool:
        return self._world.truth

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)

    def __lt__(self, other: object) -> bool:
        return self._world.truth

    __gt__ = __le__ = __ge__ = __lt__

    def __contains__(self, item: object) -> bool:
        return self._world.truth

    def __getitem__(self, key: object) -> Anything:
        return Anything(f"{self._path}[]", self._world)

    def __setitem__(self, key: object, value: object) -> None:
        self._world.record("set", f"{self._path}[]", value)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __str__(self) -> str:
        return self._path

    __repr__ = __str__

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (StandInBase,)

    def _arithmetic(self, other: object) -> Anything:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _arithmetic
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _arithmetic
    __or__ = __ror__ = __and__ = __rand__ = __mod__ = __rmod__ = _arithmetic


class StandInBase:
    """The base of every class of the module whose real base is not there."""

    stand_in_world: World

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Anything(f"self.{name}", self.stand_in_world)
        self.__dict__[name] = value
        return value


class Logger:
    """vLLM's and LMCache's logger: records, and says ``*_once`` messages once."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Callable[..., None]:
        level = name.removesuffix("_once")

        def log(*args: object, **kwargs: object) -> None:
            if level != name and (name, args) in self._world.said:
                return
            self._world.said.append((name, args))
            self._world.record("log", level, *args)

        return log


@dataclass(frozen=True)
class Creation:
    """One creation of the KV connector: when, with what, and what the tracker held then."""

    phase: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tracked: Mapping[str, Any]


@dataclass(frozen=True)
class LMCache:
    """What importing LMCache does in a world: fail, or give modules.

    ``sources`` are real released modules, executed with stand-ins for all that they import.
    """

    errors: tuple[Exception, ...] = ()
    sources: Mapping[str, bytes] = field(default_factory=dict)


WORKING = LMCache()


class World:
    """Everything outside the module: importable packages, the log, what was called.

    Args:
        truth: what every unknown condition is.
        lmcache: what importing LMCache does.
    """

    def __init__(self, truth: bool, lmcache: LMCache) -> None:
        self.truth = truth
        self.phase = "import"
        self.events: list[Event] = []
        self.creations: list[Creation] = []
        self.said: list[object] = []
        self.labels: dict[int, str] = {}
        self.modules: dict[str, Any] = {}
        self.registrations: list[tuple[str, object]] = []
        self._lmcache = lmcache
        self._errors = iter(lmcache.errors)
        self._roots: dict[str, Any] = {}
        self.builtins = {**vars(builtins), "__import__": self.import_}

    @property
    def tracked(self) -> dict[str, Any]:
        """What LMCache's tracker holds."""
        home = self.modules.get(TRACKER_HOME)
        return {} if home is None else home.VLLMModelTracker._vllm_models

    def record(self, kind: str, what: str, *args: object, **kwargs: object) -> None:
        """Remember one event, in the phase in which it happens."""
        described = [self.describe(value) for value in args]
        described += [f"{key}={self.describe(value)}" for key, value in kwargs.items()]
        self.events.append((self.phase, kind, what, *described))

    def describe(self, value: object) -> str:
        """The same words for the same thing in every world."""
        if (label := self.labels.get(id(value))) is not None:
            return label
        if isinstance(value, (str, int, float, bool, type(None))):
            return repr(value)
        if isinstance(value, Anything):
            return str(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.describe(item) for item in value)}]"
        if isinstance(value, dict):
            items = (f"{key!r}: {self.describe(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        return type(value).__name__

    def special(self, name: str) -> Any:
        """The stand-ins that do more than record: the connector and the logger."""
        if name == "ensure_kv_transfer_initialized":
            return self._create
        if name == "init_logger":
            return lambda *_: Logger(self)
        return None

    def _create(self, *args: Any, **kwargs: Any) -> None:
        self.record("create", "connector", *args, **kwargs)
        self.creations.append(Creation(self.phase, args, kwargs, dict(self.tracked)))

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002
        locals: object = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Stands for ``__import__`` in the executed modules."""
        importer = str((globals or {}).get("__name__", ""))
        if level:
            name = ".".join([*importer.split(".")[:-level], *([name] if name else [])])
        root = name.partition(".")[0]
        if root in _REAL:
            return builtins.__import__(name, None, None, fromlist or (), 0)
        if name == "sys":
            return SimpleNamespace(modules=self.modules, maxsize=sys.maxsize, version_info=(3, 11))
        if root == "lmcache" and not importer.startswith("lmcache"):
            return self._import_lmcache(name, fromlist)
        if name in self.modules:
            return self.modules[name]
        module = self._root(root)
        for part in name.split(".")[1:] if fromlist else ():
            module = getattr(module, part)
        return module

    def _root(self, root: str) -> Any:
        return self._roots.setdefault(root, Anything(root, self))

    def _import_lmcache(self, name: str, fromlist: Sequence[str] | None) -> Any:
        self.record("import", name)
        if self._lmcache.errors:
            raise next(self._errors, self._lmcache.errors[-1])
        for home in (ENGINE_NAME_HOME, OTHER_ENGINE_NAME_HOME, TRACKER_HOME):
            self.load(home)
        if name not in self.modules and not any(m.startswith(f"{name}.") for m in self.modules):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if fromlist and name in self.modules:
            return self.modules[name]
        package = SimpleNamespace()
        for home, module in self.modules.items():
            inner = package
            parts = home.split(".")[1:]
            for part in parts[:-1]:
                inner.__dict__.setdefault(part, SimpleNamespace())
                inner = inner.__dict__[part]
            inner.__dict__[parts[-1]] = module
        for part in name.split(".")[1:] if fromlist else ():
            package = getattr(package, part)
        return package

    def load(self, home: str) -> Any:
        """Import one module of LMCache, the real one where the world has its source."""
        if home in self.modules:
            return self.modules[home]
        module: Any = types.ModuleType(home)
        self.modules[home] = module
        source = self._lmcache.sources.get(home)
        if source is not None:
            module.__dict__["__builtins__"] = self.builtins
            exec(_compiled(source), module.__dict__)
            return module
        if home == ENGINE_NAME_HOME:
            module.ENGINE_NAME = ENGINE_NAME
        elif home == OTHER_ENGINE_NAME_HOME:
            module.ENGINE_NAME = "another constant of that name"
        elif home == TRACKER_HOME:
            module.VLLMModelTracker = self._tracker()
        return module

    def _tracker(self) -> Any:
        world = self

        class VLLMModelTracker:
            _vllm_models: dict[str, object] = {}  # noqa: RUF012

            @classmethod
            def register_model(cls, instance_id: str, vllm_model: object) -> None:
                world.record("register", instance_id, vllm_model)
                world.registrations.append((instance_id, vllm_model))
                cls._vllm_models.setdefault(instance_id, vllm_model)

            @classmethod
            def get_model(cls, instance_id: str) -> object:
                return cls._vllm_models[instance_id]

        return VLLMModelTracker


class LlamaForCausalLM:
    """The bare model."""


class Wrapper:
    """Wraps a model as vLLM's graph wrappers do: forwards attributes, gives back by unwrap."""

    def __init__(self, runnable: Any) -> None:
        self.runnable = runnable

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runnable, name)

    def unwrap(self) -> Any:
        return self.runnable


class CUDAGraphWrapper(Wrapper):
    """Full CUDA graphs."""


class BreakableCUDAGraphWrapper(Wrapper):
    """Another wrapper that can stand around the first."""


class UBatchWrapper(Wrapper):
    """Micro batches, around whatever is inside."""


def _bare(model: Any) -> Any:
    return model


def _nested(model: Any) -> Any:
    return UBatchWrapper(BreakableCUDAGraphWrapper(CUDAGraphWrapper(model)))


@dataclass(frozen=True)
class Kind:
    """A kind of model runner: how it wraps the model, and how many levels get_model unwraps."""

    name: str
    wrap: Callable[[Any], Any]
    unwraps: int | None = None


BARE = Kind("the bare model in the attribute", _bare)
BARE_GET_MODEL = Kind("the bare model, and get_model", _bare, 1)
WRAPPED = Kind("a graph wrapper, and get_model", CUDAGraphWrapper, 1)
WRAPPED_ONLY = Kind("a graph wrapper without get_model", CUDAGraphWrapper)
NESTED = Kind("nested wrappers, and get_model for one level", _nested, 1)
NESTED_DEEP = Kind("nested wrappers, and get_model for all levels", _nested, 3)
NESTED_ONLY = Kind("nested wrappers without get_model", _nested)
KINDS = (BARE, BARE_GET_MODEL, WRAPPED, WRAPPED_ONLY, NESTED, NESTED_DEEP, NESTED_ONLY)


class Runner:
    """The model runner: has a model once it loaded one."""

    def __init__(self, world: World, kind: Kind, model: object) -> None:
        self.next_model = model
        self._world = world
        self._kind = kind
        if kind.unwraps is not None:
            self.get_model = self._get_model

    def load_model(self, *args: object, **kwargs: object) -> None:
        self._world.record("call", "runner.load_model", *args, **kwargs)
        self.model = self._kind.wrap(self.next_model)

    def _get_model(self) -> Any:
        self._world.record("call", "runner.get_model")
        model = self.model
        for _ in range(self._kind.unwraps or 0):
            model = model.unwrap() if isinstance(model, Wrapper) else model
        return model

    def __getattr__(self, name: str) -> Any:
        if name in ("get_model", "model", "unwrap") or name.startswith("__"):
            raise AttributeError(name)
        value = Anything(f"runner.{name}", self._world)
        self.__dict__[name] = value
        return value


_UNSET: Any = object()


class Config:
    """vLLM's configuration: has a KV transfer configuration or not, and anything else."""

    def __init__(self, world: World, connector: object) -> None:
        if connector is not _UNSET:
            self.kv_transfer_config = connector
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name == "kv_transfer_config" or name.startswith("__"):
            raise AttributeError(name)
        value = Anything(f"config.{name}", self._world)
        self.__dict__[name] = value
        return value


@dataclass(frozen=True)
class Connector:
    """A KV transfer configuration, and whether it means LMCache's in-process connector."""

    name: str
    config: Any
    in_process: bool


def _named(name: Any, module: Any = None, connectors: Any = _UNSET) -> SimpleNamespace:
    extra = {} if connectors is _UNSET else {"connectors": connectors}
    return SimpleNamespace(
        kv_connector=name, kv_connector_module_path=module, kv_connector_extra_config=extra
    )


def _entry(name: str, module: Any = _UNSET, connectors: Any = _UNSET) -> dict[str, Any]:
    entry: dict[str, Any] = {"kv_connector": name, "kv_role": "kv_both"}
    if module is not _UNSET:
        entry["kv_connector_module_path"] = module
    if connectors is not _UNSET:
        entry["kv_connector_extra_config"] = {"connectors": connectors}
    return entry


_DYNAMIC = "lmcache.integration.vllm.lmcache_connector_v1"
_MP = "lmcache.integration.vllm.lmcache_mp_connector"
_NIXL = _entry("NixlConnector")
_LMCACHE = _entry("LMCacheConnectorV1")

CONNECTORS: tuple[Connector, ...] = (
    Connector("no attribute for it", _UNSET, False),
    Connector("none", None, False),
    Connector("none named", _named(None), False),
    Connector("an empty name", _named(""), False),
    Connector("without any attribute", SimpleNamespace(), False),
    Connector("only a name", SimpleNamespace(kv_connector="NixlConnector"), False),
    Connector("NIXL", _named("NixlConnector"), False),
    Connector("offloading", _named("OffloadingConnector"), False),
    Connector("the MP connector by name", _named("LMCacheMPConnector"), False),
    Connector("the MP connector by module path", _named("LMCacheMPConnector", _MP), False),
    Connector("a package whose name only begins so", _named("Foo", "lmcacheX.foo"), False),
    Connector("a package further down", _named("Foo", "vendor.lmcache.foo"), False),
    Connector("a name that only ends so", _named("MyLMCacheConnector"), False),
    Connector("multi without connectors", _named("MultiConnector"), False),
    Connector("multi with none of LMCache's", _named("MultiConnector", None, [_NIXL]), False),
    Connector(
        "multi with MP only",
        _named("MultiConnector", None, [_NIXL, _entry("LMCacheMPConnector", _MP)]),
        False,
    ),
    Connector("multi of None", _named("MultiConnector", None, None), False),
    Connector("multi of a string", _named("MultiConnector", None, "LMCacheConnectorV1"), False),
    Connector("multi of a number", _named("MultiConnector", None, 7), False),
    Connector("multi of odd entries", _named("MultiConnector", None, [None, "x", 3, []]), False),
    Connector(
        "multi with an extra config that is None",
        SimpleNamespace(kv_connector="MultiConnector", kv_connector_extra_config=None),
        False,
    ),
    Connector("connectors of something that is not multi", _named("Nixl", None, [_LMCACHE]), False),
    Connector(
        "multi nested twice without LMCache's",
        _named(
            "MultiConnector",
            None,
            [_entry("MultiConnector", None, [_entry("MultiConnector", None, [_NIXL])])],
        ),
        False,
    ),
    Connector("LMCacheConnectorV1", _named("LMCacheConnectorV1"), True),
    Connector("only its name", SimpleNamespace(kv_connector="LMCacheConnectorV1"), True),
    Connector("as a dict", _LMCACHE, True),
    Connector("a probe of that name", _named("LMCacheConnectorProbe", "probe"), True),
    Connector("dynamic", _named("LMCacheConnectorV1Dynamic", _DYNAMIC), True),
    Connector("any class below lmcache", _named("Foo", _DYNAMIC), True),
    Connector("any class in lmcache", _named("Foo", "lmcache"), True),
    Connector("multi with LMCache's", _named("MultiConnector", None, [_NIXL, _LMCACHE]), True),
    Connector(
        "multi with LMCache's among odd entries",
        _named("MultiConnector", None, [None, 3, _LMCACHE, "x"]),
        True,
    ),
    Connector(
        "multi with LMCache's by module path",
        _named("MultiConnector", None, [_entry("Foo", _DYNAMIC)]),
        True,
    ),
    Connector(
        "multi of objects",
        _named("MultiConnector", None, [_named("NixlConnector"), _named("LMCacheConnectorV1")]),
        True,
    ),
    Connector("multi of a tuple", _named("MultiConnector", None, (_NIXL, _LMCACHE)), True),
    Connector(
        "multi nested twice with LMCache's",
        _named(
            "MultiConnector",
            None,
            [_NIXL, _entry("MultiConnector", None, [_entry("MultiConnector", None, [_LMCACHE])])],
        ),
        True,
    ),
)

PLAIN = next(item for item in CONNECTORS if item.name == "LMCacheConnectorV1")
OTHER = next(item for item in CONNECTORS if item.name == "NIXL")


@lru_cache(maxsize=32)
def _compiled(text: bytes) -> types.CodeType:
    return compile(text, "<worker>", "exec", dont_inherit=True)


class Process:
    """One worker process: a module, executed in a world of its own.

    Args:
        text: the worker module.
        connector: the KV transfer configuration.
        kind: the model runner.
        lmcache: what importing LMCache does.
        truth: what every unknown condition is.
    """

    def __init__(
        self,
        text: bytes,
        connector: Any,
        kind: Kind = WRAPPED,
        lmcache: LMCache = WORKING,
        truth: bool = False,
    ) -> None:
        world = self.world = World(truth, lmcache)
        self.model = LlamaForCausalLM()
        self.config = Config(world, connector)
        self.kv_cache_config = Anything("kv_cache_config", world)
        self.runner = Runner(world, kind, self.model)
        world.labels = {
            id(self.model): "bare model",
            id(self.config): "vllm_config",
            id(self.kv_cache_config): "kv_cache_config",
            id(self.runner): "runner",
        }
        self._module = {"__name__": WORKER_NAME, "__builtins__": world.builtins}
        exec(_compiled(text), self._module)
        worker_class: Any = self._module["Worker"]
        self.worker = worker_class.__new__(worker_class)
        self.worker.stand_in_world = world
        self.worker.vllm_config = self.config
        self.worker.model_runner = self.runner

    def start(self) -> Process:
        """Run the worker's three steps in their fixed order."""
        self.init_device()
        self.load_model()
        self.initialize_from_config()
        return self

    def init_device(self) -> None:
        """What ``init_device`` calls of this module."""
        self.world.phase = "init_device"
        environment: Any = self._module.get("init_worker_distributed_environment")
        if environment is not None:
            environment(self.config, 0)

    def load_model(self, model: object = None) -> None:
        """Load the model, or another one where one is given."""
        self.world.phase = "load_model"
        if model is not None:
            self.runner.next_model = model
        self.worker.load_model()

    def initialize_from_config(self) -> None:
        """Allocate the KV cache."""
        self.world.phase = "initialize_from_config"
        if hasattr(type(self.worker), "initialize_from_config"):
            self.worker.initialize_from_config(self.kv_cache_config)

    @property
    def events(self) -> list[Event]:
        """All that was recorded."""
        return self.world.events

    def kinds(self, *wanted: str) -> list[Event]:
        """The events of those kinds."""
        return [event for event in self.events if event[1] in wanted]

    def besides_registration(self) -> list[Event]:
        """The events without the connector, LMCache, and the reading of the model."""
        apart = ("create", "register", "import")
        return [
            event
            for event in self.events
            if event[1] not in apart and event[2] != "runner.get_model"
        ]


def in_process_violations(
    text: bytes,
    stock: bytes | None = None,
    kinds: Sequence[Kind] = (WRAPPED,),
    connectors: Sequence[Connector] = CONNECTORS,
    early: bool = False,
) -> list[str]:
    """Where LMCache's connector is not created after the bare model was registered.

    It must be created as often as in the stock file and with the same arguments; where none is
    given, once and as ``ensure_kv_transfer_initialized`` is defined in that era. It must be there
    before the KV cache is allocated.

    Args:
        text: the worker module to judge.
        stock: the released one, where all else must be as it is there.
        kinds: the model runners to try.
        connectors: the configurations, of which those of LMCache's in-process connector are tried.
        early: whether the release creates the connector with the configuration alone.
    """
    found: list[str] = []
    for connector in connectors:
        if not connector.in_process:
            continue
        for kind in kinds:
            for truth in (False, True):
                where = f"{connector.name}, {kind.name}, conditions {truth}"
                run, failed = _started(text, connector, kind, truth)
                expected, released = None, None
                if stock is not None:
                    expected, released = _started(stock, connector, kind, truth)
                if repr(failed) != repr(released):
                    found.append(f"{where}: {failed!r} instead of {released!r}")
                elif failed is None:
                    found += [f"{where}: {problem}" for problem in _problems(run, expected, early)]
    return found


def _started(
    text: bytes, connector: Connector, kind: Kind, truth: bool
) -> tuple[Process, Exception | None]:
    """A process that ran as far as it goes, and what stopped it."""
    run = Process(b"class Worker: ...", connector.config, kind, truth=truth)
    try:
        run = Process(text, connector.config, kind, truth=truth)
        run.start()
    except Exception as error:
        return run, error
    return run, None


_TAKEN = {True: [("vllm_config",)], False: [("vllm_config", "kv_cache_config")]}


def _problems(run: Process, stock: Process | None, early: bool) -> Iterator[str]:
    creations = run.world.creations
    expected = 1 if stock is None else len(stock.world.creations)
    if len(creations) != expected:
        yield f"{len(creations)} creations, not {expected}"
    if creations and creations[0].tracked.get(ENGINE_NAME) is not run.model:
        yield f"created with {run.world.describe(creations[0].tracked)} in the tracker"
    if any(model is not run.model for _, model in run.world.registrations):
        yield "another object than the bare model was registered"
    taken = _TAKEN[early] if stock is None else _arguments(stock)
    given = _arguments(run)
    if given != taken if stock is not None else set(given) - set(taken):
        yield f"created by {given}, not {taken}"
    what = [event[2] for event in run.events]
    if "runner.initialize_kv_cache" in what[: what.index("connector") if creations else 0]:
        yield "created after the KV cache was allocated"
    if stock is not None and run.besides_registration() != stock.besides_registration():
        yield "something else changed"


def _arguments(run: Process) -> list[tuple[str, ...]]:
    return [event[3:] for event in run.kinds("create")]


def other_violations(
    text: bytes, stock: bytes, connectors: Sequence[Connector] = CONNECTORS
) -> list[str]:
    """Where another connector, or none, does not take exactly the stock path."""
    found: list[str] = []
    for connector in connectors:
        if connector.in_process:
            continue
        for truth in (False, True):
            expected, released = _started(stock, connector, WRAPPED, truth)
            run, failed = _started(text, connector, WRAPPED, truth)
            where = f"{connector.name}, conditions {truth}"
            if repr(failed) != repr(released):
                found.append(f"{where}: {failed!r} instead of {released!r}")
            if run.kinds("import"):
                found.append(f"{where}: lmcache was imported")
            if run.events != expected.events:
                found.append(f"{where}: {run.events} instead of {expected.events}")
    return found
