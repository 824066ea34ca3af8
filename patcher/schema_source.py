"""Reads a release's configuration out of its source files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from .outcome import KvpatchError
from .schema import ADAPTERS, BASE, CONFIG, EXTRA, LOADER, READERS, Key, Schema, Unknown
from .schema_code import ONLY_DICT, bind
from .schema_functions import CLASS, SETTER, Functions, text_of
from .syntax import syntax_tree

_DEFINITIONS = "_CONFIG_DEFINITIONS"
_ALIASES = "_CONFIG_ALIASES"
_DEPRECATED = "_DEPRECATED_CONFIGS"


def read_schema(read: Callable[[str], bytes | None], version: str) -> Schema:
    """The schema of a release, of which ``read`` gives any file by its path, None for none.

    Raises:
        KvpatchError: ``unknown-layout``, exit 3.
    """
    source = read(CONFIG)
    if source is None:
        raise _unknown(version, f"it has no {CONFIG}")
    readers = [text for path in READERS if (text := read(path)) is not None]
    schema = parse_schema(source, version, readers, base=read(BASE))
    loader = read(LOADER) or b""
    adapters = [text for path in ADAPTERS if (text := read(path)) is not None]
    reading = replace(
        schema.reading,
        validates_alone=schema.reading.validates_alone or b".validate()" in loader,
        env_beside_file=b".update_config_from_env(" in loader,
        overrides=any(SETTER.encode() in text for text in adapters),
    )
    return replace(schema, reading=reading)


def parse_schema(
    source: bytes, version: str, readers: Sequence[bytes] = (), base: bytes | None = None
) -> Schema:
    """The schema that the text of ``lmcache/v1/config.py`` defines.

    Args:
        source: that file.
        version: the release, for the record and for messages.
        readers: other files of the release that look into ``extra_config``.
        base: ``lmcache/v1/config_base.py``, for releases that have it.

    Raises:
        KvpatchError: ``unknown-layout``, exit 3.
    """
    module = _parsed(source, version)
    modules = [module, *(_parsed(text, version) for text in readers)]
    extra = frozenset(name for one in modules for name in _extra_names(one))
    functions = Functions(module, _parsed(base, version) if base else ast.Module([], []))
    keys = _from_definitions(module, version)
    if keys is None:
        keys = _from_class(module, functions)
    if not keys:
        raise _unknown(version, f"{CONFIG} has neither {_DEFINITIONS} nor fields of {CLASS}")
    aliases = _texts(module, _ALIASES)
    deprecated = _texts(module, _DEPRECATED)
    # An alias is looked up only for a name that is also listed as deprecated.
    live = {old: new for old, new in aliases.items() if old in deprecated}
    dead = {old: new for old, new in aliases.items() if old not in live and old not in keys}
    converters = [key.converter for key in keys.values() if key.converter]
    found = Schema(
        version,
        keys,
        extra,
        aliases={old: new for old, new in live.items() if new in keys},
        dead_aliases=dead | {old: new for old, new in live.items() if new not in keys},
        deprecated=deprecated,
        encoder_prefix=_constant(module, "_EC_FILE_PREFIX"),
        reading=functions.reading(),
        code=functions.code(converters),
    )
    return bind(found)


def _parsed(source: bytes, version: str) -> ast.Module:
    try:
        return syntax_tree(source)
    except SyntaxError:
        raise _unknown(version, "its configuration code is not valid Python") from None


def _from_definitions(module: ast.Module, version: str) -> Mapping[str, Key] | None:
    found: dict[str, Key] | None = None
    for statement in module.body:
        value = _assigned(statement, _DEFINITIONS)
        if value is not None:
            if found is not None or not isinstance(value, ast.Dict):
                raise _unknown(version, f"{_DEFINITIONS} is not one dict literal")
            found = {
                name: _definition(name, node, version) for name, node in _items(value, version)
            }
        elif found is not None and _changes_definitions(statement):
            raise _unknown(version, f"{_DEFINITIONS} is changed after its definition")
    return found


def _definition(name: str, node: ast.expr, version: str) -> Key:
    if not isinstance(node, ast.Dict):
        raise _unknown(version, f"{_DEFINITIONS} has no dict literal for {name}")
    parts = dict(_items(node, version))
    if "type" not in parts or "default" not in parts:
        raise _unknown(version, f"{_DEFINITIONS} gives no type or no default for {name}")
    converter = None if "env_converter" not in parts else ast.unparse(parts["env_converter"])
    return Key(
        name,
        ast.unparse(parts["type"]),
        _literal(parts["default"]),
        converter,
        converter or "",
    )


def _items(node: ast.Dict, version: str) -> Iterator[tuple[str, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise _unknown(version, f"{_DEFINITIONS} has a key that is no literal")
        yield key.value, value


def _texts(module: ast.Module, name: str) -> Mapping[str, str]:
    """A module's dict of text to text; empty where there is none that can be read."""
    for statement in module.body:
        value = _assigned(statement, name)
        if value is not None:
            found = _literal(value)
            return found if isinstance(found, dict) else {}
    return {}


def _constant(module: ast.Module, name: str) -> str:
    for statement in module.body:
        value = _assigned(statement, name)
        if value is not None:
            return text_of(value) or ""
    return ""


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


def _from_class(module: ast.Module, functions: Functions) -> Mapping[str, Key]:
    """The fields of the dataclass, with the defaults that ``from_file`` has of its own."""
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == CLASS:
            defaults, named, dicts = _file_reading(statement)
            converters = {name: of for name, of in named.items() if of in functions.named}
            converters.update(dict.fromkeys(dicts, ONLY_DICT))
            return {
                field.target.id: Key(
                    field.target.id,
                    ast.unparse(field.annotation),
                    defaults.get(field.target.id, _literal(field.value)),
                    None,
                    converters.get(field.target.id, ""),
                )
                for field in statement.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
    return {}


def _file_reading(
    node: ast.ClassDef,
) -> tuple[Mapping[str, object | Unknown], Mapping[str, str], set[str]]:
    """What ``from_file`` has: defaults, functions a value goes through, keys that must be dicts."""
    defaults: dict[str, object | Unknown] = {}
    converters: dict[str, str] = {}
    dicts: set[str] = set()
    for function in node.body:
        if not (isinstance(function, ast.FunctionDef) and function.name == "from_file"):
            continue
        asserted = [one.test for one in ast.walk(function) if isinstance(one, ast.Assert)]
        dicts |= {
            test.args[0].id
            for test in asserted
            if isinstance(test, ast.Call) and isinstance(test.args[0], ast.Name)
        }
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            if _is_get(call) and (name := text_of(call.args[0])) is not None:
                if len(call.args) == 2:
                    defaults.setdefault(name, _literal(call.args[1]))
            elif isinstance(call.func, ast.Name) and len(call.args) == 1:
                given = call.args[0]
                if isinstance(given, ast.Call) and _is_get(given) and given.args:
                    converters[text_of(given.args[0]) or ""] = call.func.id
                elif isinstance(given, ast.Name):
                    converters.setdefault(given.id, call.func.id)
    return defaults, converters, dicts


def _extra_names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        found: str | None = None
        if isinstance(node, ast.Call) and node.args:
            called = node.func
            named = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            looks_up = _is_get(node) and _is_extra(node.func)
            if looks_up or named.startswith("get_extra_config_"):
                found = text_of(node.args[0])
        elif isinstance(node, ast.Subscript) and _is_extra(node):
            found = text_of(node.slice)
        elif isinstance(node, ast.Compare) and any(_names_extra(one) for one in node.comparators):
            found = text_of(node.left)
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
    return (isinstance(node, ast.Attribute) and node.attr == EXTRA) or (
        isinstance(node, ast.Name) and node.id == EXTRA
    )


def _literal(node: ast.expr | None) -> object | Unknown:
    if node is None:
        return Unknown()
    if ast.unparse(node) == "float('inf')":
        return float("inf")
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
