"""The configuration keys of an LMCache release, read from its source; nothing of it is executed."""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from .bounded import run
from .interpreters import clean_environment
from .outcome import ExitCode, KvpatchError

CONFIG = "lmcache/v1/config.py"
READERS = ("lmcache/v1/storage_backend/gds_backend.py",)
"""Files that read further keys out of ``extra_config``."""

LOAD_LIMIT_S = 180.0

_DEFINITIONS = "_CONFIG_DEFINITIONS"
_CLASS = "LMCacheEngineConfig"
_EXTRA = "extra_config"
_LOAD = """
import json, logging, sys
from lmcache.v1.config import LMCacheEngineConfig
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
for name in list(logging.root.manager.loggerDict):
    if name.startswith("lmcache"):
        logging.getLogger(name).addHandler(Keep(logging.WARNING))
config = LMCacheEngineConfig.from_file(sys.argv[1])
values = {name: getattr(config, name, None) for name in sys.argv[2:]}
print(json.dumps([complaints, values]))
"""


@dataclass(frozen=True)
class Unknown:
    """A value that is no literal: the text it is computed by, empty where there is none."""

    text: str = ""


@dataclass(frozen=True)
class Key:
    """One key of the configuration file, with the source text of its type and converter."""

    name: str
    type: str
    default: object | Unknown
    env_converter: str | None


@dataclass(frozen=True)
class Schema:
    """What a release reads: its keys, and the names it looks for inside ``extra_config``."""

    version: str
    keys: Mapping[str, Key]
    extra: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Whether that release reads the key; ``extra_config.NAME`` for one inside of it."""
        outer, dot, inner = name.partition(".")
        if not dot:
            return outer in self.keys
        return outer == _EXTRA and outer in self.keys and inner in self.extra


def read_schema(read: Callable[[str], bytes | None], version: str) -> Schema:
    """The schema of a release, of which ``read`` gives any file by its path, None for none.

    Raises:
        KvpatchError: ``unknown-layout``, exit 3.
    """
    source = read(CONFIG)
    if source is None:
        raise _unknown(version, f"it has no {CONFIG}")
    readers = [text for path in READERS if (text := read(path)) is not None]
    return parse_schema(source, version, readers)


def parse_schema(source: bytes, version: str, readers: Sequence[bytes] = ()) -> Schema:
    """The schema that the text of ``lmcache/v1/config.py`` defines.

    Args:
        source: that file.
        version: the release, for the record and for messages.
        readers: other files of the release that look into ``extra_config``.

    Raises:
        KvpatchError: ``unknown-layout``, exit 3.
    """
    module = _parsed(source, version)
    keys = _from_definitions(module, version)
    if keys is None:
        keys = _from_class(module)
    if not keys:
        raise _unknown(version, f"{CONFIG} has neither {_DEFINITIONS} nor fields of {_CLASS}")
    modules = [module, *(_parsed(text, version) for text in readers)]
    extra = frozenset(name for one in modules for name in _extra_names(one))
    return Schema(version, keys, extra)


def misread(python: Path, text: str) -> tuple[str, ...]:
    """What LMCache's own code, run by that interpreter, reads otherwise than the text says.

    One sentence for each warning that it logs and each top-level key whose value differs; none
    where it reads all as meant.

    Raises:
        KvpatchError: ``not-loaded``, exit 1: it does not read the file at all.
    """
    meant = yaml.safe_load(text)
    environ = {
        name: value
        for name, value in clean_environment(os.environ).items()
        if not name.startswith("LMCACHE_")
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lmcache.yaml")
        file.write_text(text, "utf-8")
        argv = [python, "-I", "-c", _LOAD, file, *meant]
        ended = run(argv, limit=LOAD_LIMIT_S, env=environ, cwd=Path(folder))
    lines = ended.output.strip().splitlines() or [""]
    if ended.code != 0:
        raise KvpatchError(
            "not-loaded",
            f"LMCache does not read the configuration: {lines[-1].strip()}",
            "report this release of LMCache",
            ExitCode.NO,
        )
    complaints, values = json.loads(lines[-1])
    # A logger that passes its messages on has them kept twice.
    found = [f"LMCache warns: {complaint}" for complaint in dict.fromkeys(complaints)]
    found += [
        f"LMCache reads {name} as {values[name]!r}, where {value!r} is meant"
        for name, value in meant.items()
        if values[name] != value
    ]
    return tuple(found)


def _parsed(source: bytes, version: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        raise _unknown(version, "its configuration code is not valid Python") from None


def _from_definitions(module: ast.Module, version: str) -> Mapping[str, Key] | None:
    found: dict[str, Key] | None = None
    for statement in module.body:
        value = _assigned(statement, _DEFINITIONS)
        if value is not None:
            if found is not None or not isinstance(value, ast.Dict):
                raise _unknown(version, f"{_DEFINITIONS} is not one dict literal")
            found = dict(_definition(name, node, version) for name, node in _items(value, version))
        elif found is not None and _changes_definitions(statement):
            raise _unknown(version, f"{_DEFINITIONS} is changed after its definition")
    return found


def _definition(name: str, node: ast.expr, version: str) -> tuple[str, Key]:
    if not isinstance(node, ast.Dict):
        raise _unknown(version, f"{_DEFINITIONS} has no dict literal for {name}")
    parts = dict(_items(node, version))
    if "type" not in parts or "default" not in parts:
        raise _unknown(version, f"{_DEFINITIONS} gives no type or no default for {name}")
    converter = parts.get("env_converter")
    return name, Key(
        name,
        ast.unparse(parts["type"]),
        _literal(parts["default"]),
        None if converter is None else ast.unparse(converter),
    )


def _items(node: ast.Dict, version: str) -> Iterator[tuple[str, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise _unknown(version, f"{_DEFINITIONS} has a key that is no literal")
        yield key.value, value


def _changes_definitions(statement: ast.stmt) -> bool:
    """Whether a statement of the module itself, outside of functions, adds or drops keys."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign | ast.Delete):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.For):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        targets = [called.value] if isinstance(called, ast.Attribute) else []
    names = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
    return any(isinstance(name, ast.Name) and name.id == _DEFINITIONS for name in names)


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return statement.value if isinstance(target, ast.Name) and target.id == name else None


def _from_class(module: ast.Module) -> Mapping[str, Key]:
    """The fields of the dataclass, with the defaults that ``from_file`` has of its own."""
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == _CLASS:
            defaults = _file_defaults(statement)
            return {
                field.target.id: Key(
                    field.target.id,
                    ast.unparse(field.annotation),
                    defaults.get(field.target.id, _literal(field.value)),
                    None,
                )
                for field in statement.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
    return {}


def _file_defaults(node: ast.ClassDef) -> Mapping[str, object | Unknown]:
    defaults: dict[str, object | Unknown] = {}
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "from_file":
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _is_get(call) and len(call.args) == 2:
                    name = _text(call.args[0])
                    if name is not None:
                        defaults.setdefault(name, _literal(call.args[1]))
    return defaults


def _extra_names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        found: str | None = None
        if isinstance(node, ast.Call) and node.args:
            called = node.func
            named = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            looks_up = _is_get(node) and _is_extra(node.func)
            if looks_up or named.startswith("get_extra_config_"):
                found = _text(node.args[0])
        elif isinstance(node, ast.Subscript) and _is_extra(node):
            found = _text(node.slice)
        elif isinstance(node, ast.Compare) and any(_names_extra(one) for one in node.comparators):
            found = _text(node.left)
        if found is not None:
            yield found


def _is_get(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "get"


def _is_extra(node: ast.expr) -> bool:
    """Whether it is something of ``extra_config``, or of ``(x.extra_config or {})``."""
    owner = node.value if isinstance(node, ast.Attribute | ast.Subscript) else node
    if isinstance(owner, ast.BoolOp):
        return any(_names_extra(value) for value in owner.values)
    return _names_extra(owner)


def _names_extra(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == _EXTRA) or (
        isinstance(node, ast.Name) and node.id == _EXTRA
    )


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _literal(node: ast.expr | None) -> object | Unknown:
    if node is None:
        return Unknown()
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError):
        return Unknown(ast.unparse(node))
    return value


def _unknown(version: str, why: str) -> KvpatchError:
    return KvpatchError(
        "unknown-layout",
        f"the configuration keys of LMCache {version} can't be read: {why}",
        "use an LMCache release that this kvpatch knows, 0.3.3 or newer, or a newer kvpatch",
    )
