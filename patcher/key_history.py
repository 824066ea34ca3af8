"""In which releases of LMCache a key or a variable is known, and what became of it.

The releases are in ``lmcache_keys.json``, which :func:`build` makes from the sources of all of
them. No source says that a key was renamed, save for the aliases it lists: those that were renamed
without a word are in ``RENAMED``, and a test checks each against the releases.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from .schema import EXTRA, Schema

RENAMED: Mapping[str, str] = {
    "blend_recompute_ratio": "blend_recompute_ratios",
    "cufile_buffer_size": "gds_buffer_size",
    "blend_separator": "blend_special_str",
    "max_local_cache_size": "max_local_cpu_size",
    f"{EXTRA}.use_cufile": "use_gds",
    f"{EXTRA}.gds_io_threads": f"{EXTRA}.disk_io_threads",
    f"{EXTRA}.nixl_file_pool_size": f"{EXTRA}.nixl_pool_size",
}
_PEER = "prefill and decode apart name the decoder by pd_peer_host and its ports"
_SHARED = "sharing chunks between processes asks for enable_controller and the keys p2p_*"
SUCCESSORS: Mapping[str, tuple[str, str]] = {
    "weka_path": ("gds_path", "a folder on Weka is named by gds_path"),
    "enable_nixl": ("enable_pd", "prefill and decode apart are turned on by enable_pd"),
    "nixl_receiver_host": ("pd_peer_host", _PEER),
    "nixl_receiver_port": ("pd_peer_init_port", _PEER),
    "nixl_peer_port": ("pd_peer_init_port", _PEER),
    "lookup_url": ("p2p_lookup_ports", _SHARED),
    "distributed_url": ("p2p_init_ports", _SHARED),
    "local_device": ("local_cpu", "a tier in CPU memory is local_cpu, and one on disk local_disk"),
    "nixl_enable_gc": ("enable_pd", "nothing takes its place"),
}
"""What takes the place of a key that named a tier or turned on a mode, where it is no renaming.

By hand from the releases' sources and documentation: a key that came with it, and a sentence.
"""
_CLOSE = 0.75
_PREFIX = "LMCACHE_"
_VARIABLE = re.compile(r"LMCACHE_[A-Z0-9_]+")
_Spans = Sequence[tuple[str, str | None]]


@dataclass(frozen=True, eq=False, repr=False)
class Renaming:
    """What a key is called in a release; ``since`` is the first release with that name."""

    name: str
    since: str


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Spans of releases by key: ``[first, last]``, ``last`` None for the newest.

    ``extra_config.NAME`` is a name inside of it. ``first_line`` are the keys of the configuration
    class before ``lmcache.v1``. ``aliases`` were listed by some release, old name to new.
    ``variables`` are spans of the names that stand as they are in a release's code; one that ends
    in ``_`` is what others begin with.
    """

    releases: tuple[str, ...]
    spans: Mapping[str, _Spans]
    aliases: Mapping[str, str]
    first_line: frozenset[str]
    variables: Mapping[str, _Spans]

    def renaming(self, name: str, schema: Schema) -> Renaming | None:
        """The name that this release has for what ``name`` is in another; None for none."""
        both = {**self.aliases, **RENAMED}
        candidates = [both[name]] if name in both else []
        candidates += [old for old, new in both.items() if new == name]
        for candidate in candidates:
            if schema.has(candidate) and candidate in self.spans:
                newer = candidate if both.get(name) == candidate else name
                return Renaming(candidate, self.spans[newer][0][0])
        return None

    def reads(self, variable: str) -> bool:
        """Whether some release reads that variable."""
        key = variable.removeprefix(_PREFIX).lower()
        return (
            key in {*self.spans, *self.aliases}
            or variable in self.variables
            or any(one.endswith("_") and variable.startswith(one) for one in self.variables)
        )

    def told(self, name: str) -> str:
        """In which releases it is a key, for a sentence; empty where none has it."""
        spans = self.spans.get(name) or self.variables.get(name)
        if spans:
            parts = [
                f"from {first} on"
                if last is None
                else first
                if first == last
                else f"{first} to {last}"
                for first, last in spans
            ]
            return f"LMCache {' and '.join(parts)}"
        return "the configuration before lmcache.v1" if name in self.first_line else ""

    def variables_of(self, release: Version) -> frozenset[str]:
        """The variables that stand in the code of a release."""
        return frozenset(
            name
            for name, spans in self.variables.items()
            if any(
                Version(first) <= release and (last is None or release <= Version(last))
                for first, last in spans
            )
        )


def load() -> History:
    """Read the history that came with this kvpatch."""
    data = json.loads(Path(__file__).with_name("lmcache_keys.json").read_text("utf-8"))
    spans, variables = (
        {
            name: [(span[0], span[1] if len(span) > 1 else None) for span in found]
            for name, found in data[part].items()
        }
        for part in ("keys", "variables")
    )
    first_line = frozenset(data["first_line"])
    return History(tuple(data["releases"]), spans, data["aliases"], first_line, variables)


def build(
    schemas: Mapping[str, Schema],
    first_line: Sequence[str],
    variables: Mapping[str, Collection[str]],
) -> str:
    """The JSON text of the history.

    Args:
        schemas: of each release.
        first_line: keys of the configuration class before ``lmcache.v1``.
        variables: that stand in the code of each release.
    """
    ordered = sorted(schemas, key=Version)
    aliases: dict[str, str] = {}
    keys: dict[str, set[str]] = {}
    for release in ordered:
        schema = schemas[release]
        keys[release] = {*schema.keys, *(f"{EXTRA}.{name}" for name in schema.extra)}
        aliases.update({**schema.aliases, **schema.dead_aliases})
    known = set().union(*keys.values())
    return (
        '{\n"releases": '
        + json.dumps(ordered)
        + ',\n"keys": '
        + _spans(ordered, keys)
        + ',\n"variables": '
        + _spans(ordered, variables)
        + ',\n"aliases": '
        + json.dumps(dict(sorted(aliases.items())), indent=1)
        + ',\n"first_line": '
        + json.dumps(sorted(set(first_line) - known))
        + "\n}\n"
    )


def _spans(ordered: Sequence[str], names: Mapping[str, Collection[str]]) -> str:
    """The JSON text of the spans of the names that each release has."""
    found: dict[str, list[list[str]]] = {}
    before: set[str] = set()
    last = ""
    for release in ordered:
        now = set(names[release])
        for name in now - before:
            found.setdefault(name, []).append([release])
        for name in before - now:
            found[name][-1].append(last)
        before, last = now, release
    lines = (f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    return "{\n" + ",\n".join(lines) + "\n}"


def variables_in(source: bytes) -> frozenset[str]:
    """The names of LMCache's variables that are a text of their own in a Python source."""
    if b"LMCACHE_" not in source:
        return frozenset()
    texts = (one.value for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Constant))
    return frozenset(one for one in texts if isinstance(one, str) and _VARIABLE.fullmatch(one))


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that is closest to one, where any is close."""
    import difflib

    found = difflib.get_close_matches(name.lower(), known, 1, _CLOSE)
    return found[0] if found else None
