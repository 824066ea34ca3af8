"""What a release of LMCache makes of a file, the environment and vLLM's extra config together."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from .schema import EXTRA, Key, Schema, Unknown

PREFIX = "LMCACHE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG_FILE"
_INSTANCE = "lmcache_instance_id"


@dataclass(frozen=True)
class Seen:
    """One value as LMCache has it.

    Attributes:
        name: the key.
        value: what LMCache has; :class:`~kvpatch.schema.Unknown` where that can't be said.
        written: what was written; the default where nothing was.
        source: ``default``, ``file``, ``environment`` or ``launch``.
        given_as: the name it was written under: an alias, a variable, a key of the extra config.
        failure: ``none`` (it became None), ``stop`` (LMCache stops), ``kept`` (it is dropped and
            the value before it stays); empty where it was taken.
    """

    name: str
    value: Any
    written: Any
    source: str = "default"
    given_as: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Effective:
    """All values, and what LMCache's own check says.

    Attributes:
        values: by key.
        lost: values that were written and dropped; the one before them is in ``values``.
        changed: keys that the check changes, to the value it gives them.
        said: what the check warns of.
        stop: why the check stops LMCache; empty where it doesn't.
    """

    values: Mapping[str, Seen]
    lost: tuple[Seen, ...] = ()
    changed: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    stop: str = ""

    def get(self, name: str) -> Any:
        """A key's value; None where the release has no such key or the value can't be said."""
        outer, _, inner = name.partition(".")
        seen = self.values.get(outer)
        value = None if seen is None or isinstance(seen.value, Unknown) else seen.value
        if inner:
            return value.get(inner) if isinstance(value, dict) else None
        return value


def effective(
    schema: Schema,
    values: Mapping[Any, Any],
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    alone: bool = False,
) -> Effective:
    """Everything as LMCache will have it after its start.

    Args:
        schema: of the release.
        values: of the file, as YAML gives them.
        environ: of the process; None for one without such variables.
        overrides: what stands behind ``lmcache.`` in vLLM's extra config, by key.
        alone: whether there is no file.
    """
    seen = dict(_from_file(schema, values))
    lost: list[Seen] = []
    state = Effective(seen)
    if schema.reading.validates == "file" and not alone:
        state = _checked(schema, state)
    if environ and (alone or schema.reading.env_beside_file):
        for one in _from_environment(schema, environ, state.values, alone=alone):
            if one.failure == "kept":
                lost.append(one)
            else:
                state = replace(state, values={**state.values, one.name: one})
    if schema.reading.validates_alone if alone else schema.reading.validates == "env":
        state = _checked(schema, state)
    for one in _from_launch(schema, overrides or {}):
        if one.failure == "kept":
            lost.append(one)
        else:
            state = replace(state, values={**state.values, one.name: one})
    return replace(state, lost=tuple(lost))


def _from_file(schema: Schema, values: Mapping[Any, Any]) -> Iterator[tuple[str, Seen]]:
    given: dict[str, tuple[str, Any]] = {}
    for name, value in values.items():
        if name in schema.deprecated:
            given[schema.aliases.get(name, name)] = (name, value)
        elif name in schema.keys:
            given[name] = (name, value)
    for key in schema.keys.values():
        if key.name not in given:
            value = key.default
            yield key.name, Seen(key.name, value, value)
            continue
        spelt, written = given[key.name]
        value, failure = _converted(schema, key, written)
        form = schema.reading.remote_form if key.name == "remote_url" else ""
        if form and value is not None and not re.match(form, str(value)):
            value, failure = None, "stop"
        yield key.name, Seen(key.name, value, written, "file", spelt, failure)


def _converted(schema: Schema, key: Key, written: Any) -> tuple[Any, str]:
    """A value of the file as the release has it, and how that failed if it did."""
    if not schema.reading.converts_file:
        if key.convert is None:
            return written, ""
    elif written is None or key.env_converter is None:
        return written, ""
    elif key.convert is None:
        return Unknown(f"{key.env_converter}"), ""
    try:
        return key.convert(copy.deepcopy(written)), ""
    except ValueError:
        return None, "none" if schema.reading.none_on_failure else "stop"
    except Exception:
        return None, "stop"


def _from_environment(
    schema: Schema, environ: Mapping[str, str], before: Mapping[str, Seen], *, alone: bool
) -> Iterator[Seen]:
    given = {
        name: (variable, environ[variable])
        for name in [*schema.keys, *schema.aliases]
        if (variable := f"{PREFIX}{name.upper()}") in environ
    }
    resolved: dict[str, tuple[str, str]] = {}
    for name, found in given.items():
        resolved[schema.aliases.get(name, name)] = found
    for name, (variable, text) in resolved.items():
        key = schema.keys[name]
        if key.env_converter is None and not schema.reading.converts_file:
            # Each variable has code of its own there, which is not read.
            yield Seen(name, Unknown(), text, "environment", variable)
            continue
        safely = alone and schema.reading.none_alone
        if key.env_converter is None and not safely:
            # LMCache looks for the converter of every variable, and stops where there is none.
            yield Seen(name, None, text, "environment", variable, "stop")
            continue
        if key.convert is None and key.env_converter is not None:
            unknown = Unknown(f"{key.env_converter}")
            yield Seen(name, unknown, text, "environment", variable)
            continue
        try:
            plain = schema.reading.unquote(text) if schema.reading.unquote else text
            value = key.convert(plain) if key.convert else plain
            yield Seen(name, value, text, "environment", variable)
        except ValueError:
            if safely:
                yield Seen(name, None, text, "environment", variable, "none")
            else:
                yield Seen(name, before[name].value, text, "environment", variable, "kept")
        except Exception:
            yield Seen(name, None, text, "environment", variable, "stop")


def _from_launch(schema: Schema, overrides: Mapping[str, Any]) -> Iterator[Seen]:
    if not schema.reading.overrides:
        return
    for name, written in overrides.items():
        key = schema.keys.get(name)
        if key is None:
            continue
        value, failure = written, ""
        if schema.reading.converts_overrides and name != EXTRA and written is not None:
            value, failure = _converted(schema, key, written)
            failure = "kept" if failure else ""
        elif name == EXTRA and schema.reading.parses_extra and isinstance(written, str):
            value, failure = _read(written)
        yield Seen(name, value, written, "launch", f"lmcache.{name}", failure)


def _read(text: str) -> tuple[Any, str]:
    """A text as JSON, which is kept from where it would go if it is none."""
    try:
        return json.loads(text) if text else None, ""
    except (ValueError, RecursionError):
        return None, "kept"


def _checked(schema: Schema, state: Effective) -> Effective:
    """The state after the release's own check; as it was where that can't be run."""
    values = {name: seen.value for name, seen in state.values.items()}
    if schema.validate is None or any(isinstance(one, Unknown) for one in values.values()):
        return state
    before = _copied(values)
    if before.get(_INSTANCE) is None and _INSTANCE in before:
        # LMCache makes one up before it looks.
        before[_INSTANCE] = "made-up"
    config = SimpleNamespace(**_copied(before))
    schema.log.clear()
    stop = ""
    try:
        schema.validate(config)
    except Exception as error:
        stop = str(error) or type(error).__name__
    said = tuple(dict.fromkeys(schema.log))
    changed = {name: new for name, new in vars(config).items() if _differs(before.get(name), new)}
    seen = {
        name: replace(one, value=changed[name]) if name in changed else one
        for name, one in state.values.items()
    }
    return replace(state, values=seen, changed=changed, said=said, stop=stop)


def _differs(before: Any, now: Any) -> bool:
    """Whether two values are not the same; NaN is, though it equals nothing."""
    numbers = isinstance(before, float) and isinstance(now, float)
    return bool(before != now) and not (numbers and math.isnan(before) and math.isnan(now))


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the values; what can't be changed, which is most of it, is not copied."""
    plain = (str, int, float, type(None))
    return {
        name: value if isinstance(value, plain) else copy.deepcopy(value)
        for name, value in values.items()
    }
