"""What the rules of ``kvpatch lint`` look at."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from .coercion import PREFIX, Effective, Seen
from .env_format import text_of
from .key_history import History
from .rules import Finding, Fix, Level, Rule, one_line
from .schema import Schema
from .secrecy import masked, shown
from .surroundings import Surroundings
from .yaml_source import YamlFile

if TYPE_CHECKING:
    from .serve_config import Origin

TENSOR = "tensor-parallel-size"
PIPELINE = "pipeline-parallel-size"
CONTEXT = "decode-context-parallel-size"
DISK_SIZE = "max_local_disk_size"
_PLACE = re.compile(r"local_disk|\w+_(?:path|url|host)")
_NOTHING = frozenset({"none", "null", "false", "off", "no"})
_NOT_NONE = frozenset({"gds_path", "maru_path", "remote_url", "weka_path"})
"""Those of which LMCache asks whether they are None, so that an empty text is one too."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Context(Surroundings):
    """A configuration with all that is known of where it will run.

    Attributes:
        file: the YAML file.
        schema: of the LMCache release.
        history: of all of them.
        effective: the values as LMCache will have them.
        whole_environ: whether ``environ`` is all of it, so that what is not there is not set.
    """

    file: YamlFile
    schema: Schema
    history: History
    effective: Effective
    whole_environ: bool = False

    @property
    def lmcache(self) -> Version:
        """Release of LMCache."""
        return Version(self.schema.version)

    @property
    def blends(self) -> bool:
        """Whether blending is on."""
        return bool(self.effective.get("enable_blending"))

    @property
    def by_layer(self) -> bool:
        """Whether LMCache stores and loads layer by layer."""
        return self.blends or bool(self.value("use_layerwise"))

    @property
    def ranks(self) -> int:
        """How many ranks the command starts; 1 where it is not known."""
        return self.parallel(TENSOR) * self.parallel(PIPELINE)

    def parallel(self, option: str) -> int:
        """The number that the command gives an option; 1 where it gives none, or no number."""
        return self.launch.parallel(option) if self.launch else 1

    @property
    def gds(self) -> bool:
        """Whether chunks go to GDS storage."""
        return bool(self.value("gds_path"))

    @property
    def disk(self) -> bool:
        """Whether chunks go to a local disk."""
        return bool(self.value("local_disk")) and self.disk_sized

    @property
    def disk_sized(self) -> bool:
        """Whether a local disk has a size; one that is no number is told with its value."""
        size = self.value(DISK_SIZE)
        return not isinstance(size, int | float) or size > 0

    @property
    def configured(self) -> bool:
        """Whether there is a file, or a variable of LMCache's."""
        return self.file.written or any(name.startswith(PREFIX) for name in self.environ or ())

    def is_set(self, name: str) -> bool:
        """Whether something other than a default is there for a key."""
        seen = self.effective.values.get(name)
        return seen is not None and seen.source != "default"

    def found(
        self,
        rule: Rule,
        message: str,
        key: str,
        *,
        seen: Seen | None = None,
        fix: Fix | None = None,
        lower: Level | None = None,
        todo: str = "",
    ) -> Finding:
        """A finding about a key, at the place where it was written.

        Args:
            rule: of it.
            message: what is told.
            key: the key.
            seen: what was written, where that is not what counts.
            fix: where it is certain.
            lower: a level below the rule's.
            todo: what cures it where that is no value; it ends the message.
        """
        message = f"{message}: {todo}" if todo else message
        seen = seen or self.effective.values.get(key)
        source = "file" if seen is None or seen.source == "default" else seen.source
        entry = self.file.entries.get(seen.given_as if seen and seen.given_as else key)
        entry = entry or self.file.entries.get(key)
        line, column = (entry.line, entry.column) if entry and source == "file" else (0, 0)
        # What was written elsewhere is not mended in the file.
        certain = fix if source == "file" else None
        found = Finding(rule, message, key, source, line, column, certain, lower, todo)
        return self.written(found) if source == "launch" else found

    def written(self, found: Finding) -> Finding:
        """A finding about the connector's configuration, where vLLM's file has that."""
        return placed(found, self.launch.origin("kv-transfer-config") if self.launch else None)

    def shown(self, name: str, value: Any) -> str:
        """A key's value as a message may have it."""
        return shown(name, value, self.schema.extra)

    def form(self, name: str, value: Any, seen: Seen | None = None) -> str:
        """How to write that value of a key where it is written, or would be.

        ``seen`` is what was written, where that is not what counts.
        """
        seen = seen or self.effective.values.get(name)
        source = seen.source if seen else "default"
        if source == "environment" or (source == "default" and not self.file.written):
            return one_line(masked(text_of(self.schema, value), name))
        return self.shown(name, value)

    def value(self, name: str) -> Any:
        """A key's value as LMCache will have it; None also where it is meant to be nothing."""
        value = self.effective.get(name)
        return None if self.misnamed(name, value) else value

    def misnamed(self, name: str, value: Any) -> bool:
        """Whether a folder or an address has a name that is meant to say that there is none."""
        key = self.schema.keys.get(name)
        if key is None or key.default is not None or not _PLACE.fullmatch(name):
            return False
        return says_nothing(value) or (value == "" and name in _NOT_NONE)


def says_nothing(value: object) -> bool:
    """Whether that is a word for nothing; an empty text is none."""
    return value is False or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def placed(finding: Finding, origin: Origin | None) -> Finding:
    """A finding where its option was written: in vLLM's file, or as it is for the command."""
    if origin is None or not origin.path:
        return finding
    return replace(finding, path=origin.path, line=origin.line, column=origin.column)
