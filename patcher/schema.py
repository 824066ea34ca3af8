"""The configuration of an LMCache release as its own source defines it; nothing is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

EXTRA = "extra_config"

CONFIG = "lmcache/v1/config.py"
BASE = "lmcache/v1/config_base.py"
READERS = ("lmcache/v1/storage_backend/gds_backend.py",)
"""Files that read further keys out of ``extra_config``."""
LOADER = "lmcache/integration/vllm/utils.py"
"""The file that decides whether the environment counts beside a file."""
ADAPTERS = (
    "lmcache/integration/vllm/vllm_v1_adapter.py",
    "lmcache/inprocess/integration/vllm/vllm_v1_adapter.py",
)
"""Where vLLM's ``kv_connector_extra_config`` is read; the file has moved."""
FILES = (CONFIG, BASE, *READERS, LOADER, *ADAPTERS)

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Unknown:
    """A value that is no literal: the text it is computed by, empty where there is none."""

    text: str = ""


@dataclass(frozen=True)
class Key:
    """One key of the configuration file, with the source text of its type and converter.

    ``converter`` is what values go through: the converter, or what a file's reader calls by itself.
    ``convert`` is that, callable; None where there is none, or none that is seen to be pure.
    """

    name: str
    type: str
    default: object | Unknown
    env_converter: str | None
    converter: str = field(default="", compare=False)
    convert: Convert | None = field(default=None, compare=False)

    @property
    def optional(self) -> bool:
        """Whether null is a value of its own, not a gap."""
        return "None" in self.type or self.type.startswith("Optional") or self.default is None


@dataclass(frozen=True)
class Reading:
    """How a release takes its values.

    Attributes:
        converts_file: values of the file go through the converters.
        none_on_failure: a value of the file that can't be converted becomes None, with a warning
            in the log; otherwise LMCache stops at it.
        none_alone: the same of a variable where there is no file; otherwise the default stays.
        env_beside_file: ``LMCACHE_<KEY>`` counts where there is a file too.
        unquote: what is done to the text of a variable before it is converted.
        overrides: ``lmcache.<key>`` in vLLM's ``kv_connector_extra_config`` counts.
        converts_overrides: those values go through the converters.
        parses_extra: of them a text for ``extra_config`` is read as JSON.
        remote_form: a pattern that ``remote_url`` in a file has to match; empty for any.
        validates: after what the configuration is checked: ``file`` or ``env``; empty for never.
        validates_alone: whether it is checked where there is no file.
    """

    converts_file: bool = True
    none_on_failure: bool = True
    none_alone: bool = True
    env_beside_file: bool = True
    unquote: Convert | None = field(default=None, compare=False)
    overrides: bool = True
    converts_overrides: bool = True
    parses_extra: bool = True
    remote_form: str = ""
    validates: str = "env"
    validates_alone: bool = True


@dataclass(frozen=True)
class Schema:
    """What a release reads: its keys, and the names it looks for inside ``extra_config``.

    Attributes:
        version: of LMCache.
        keys: by name.
        extra: names looked for inside ``extra_config``, in the files that are read for it.
        aliases: old name to new name, those alone that the release follows.
        dead_aliases: the same for those that it lists and does not follow.
        deprecated: old name to the release's own words for it.
        reading: how values are taken.
        encoder_prefix: what stands before keys that are for the encoder cache alone.
        code: the source of the release's functions that ``convert``, ``unquote`` and ``validate``
            are made of.
        validate: the release's own check, given an object with the values; it raises, logs a
            warning through ``log``, and may change values.
    """

    version: str
    keys: Mapping[str, Key]
    extra: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    dead_aliases: Mapping[str, str] = field(default_factory=dict)
    deprecated: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = Reading()
    encoder_prefix: str = ""
    code: str = field(default="", compare=False)
    validate: Convert | None = field(default=None, compare=False)
    log: list[str] = field(default_factory=list, compare=False)

    def has(self, name: str) -> bool:
        """Whether that release reads the key; ``extra_config.NAME`` for one inside of it."""
        outer, dot, inner = name.partition(".")
        if not dot:
            return outer in self.keys
        return outer == EXTRA and outer in self.keys and inner in self.extra
