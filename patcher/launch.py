"""A ``vllm serve`` command taken apart, as far as it concerns LMCache."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import Version

from . import wrapper, wrapper_words
from .compile_options import Compiling, compiling
from .connector_names import foreign
from .kv_connector import connectors, is_in_process, transfers_of
from .serve_config import SWITCHES, Origin, ServeConfig
from .shell_state import Unsure, Withheld
from .shell_variables import Argument
from .vllm_options import OFFLOADING, full_name, offloads

_LOOKED_AT = frozenset(
    {"kv-transfer-config", "compilation-config", "cc", "O", "kv-cache-dtype"}
    | {"gpu-memory-utilization", "kv-offloading-backend", "kv-offloading-size"}
    | SWITCHES
)
"""Options on which something is said."""
_VLLMS = frozenset({"max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size"}) | {
    *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "served-model-name"),
    *("decode-context-parallel-size", "tp", "pp", "dcp", "hf-overrides", "trust-remote-code"),
    *("swap-space", "quantization", "dtype", "enable-chunked-prefill", "kv-transfer-config"),
}
"""Options by which a command is known to be vLLM's."""
_SAME = (
    frozenset({"compilation-config", "cc", "O"}),
    frozenset({"tensor-parallel-size", "tp", "t"}),
    frozenset({"pipeline-parallel-size", "pp"}),
    frozenset({"decode-context-parallel-size", "dcp"}),
    frozenset({"attention-config", "ac"}),
)
"""Names of one option each."""
_BLANK = re.compile(r" +--\w")
"""A word that a shell makes of a backslash with a blank behind it."""


@dataclass(frozen=True)
class Launch:
    """A command's flags, and the KV connector's configuration.

    Attributes:
        flags: by name without dashes; True for a switch, False for its ``no-`` form.
        environ: variables that are given to the command, as far as it says so itself.
        transfer: ``--kv-transfer-config``, or what its dotted forms say where there are any.
        problem: why that can't be read; empty where it can.
        model: the first word behind ``serve``.
        args: what vLLM is given, from ``serve`` on or behind its module; empty for no vLLM.
        folder: where the command changes to before; empty where that can't be known.
        config: what ``--config FILE`` came to; None where it names none, or nobody looked.
        origins: where those flags were written that the file set.
        doubt: why an option that is not here may be given all the same; empty where it is not.
        unread: options whose value is not known; they are not among the flags.
        lines: those of the script that start vLLM, the one of this launch last.
        ordered: all flags as vLLM has them one behind the other, the file's first, with the
            beginning of a name that was written for the whole as it is.
        overruled: other connectors that are given before ``transfer``, which vLLM reads too.
        withheld: variables that the script sets, and that do not reach vLLM.
        scripted: whether it stands in a script or a unit.
        unsure: variables that vLLM may have otherwise than ``environ`` says.
        returned: what holds carriage returns that a shell takes for a part of its words.
    """

    flags: Mapping[str, str | bool]
    environ: Mapping[str, str] = field(default_factory=dict)
    transfer: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    model: str | None = None
    args: tuple[str, ...] = ()
    folder: str | None = None
    config: ServeConfig | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    doubt: str = ""
    unread: frozenset[str] = frozenset()
    lines: tuple[int, ...] = ()
    ordered: tuple[tuple[str, str | bool], ...] = ()
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    scripted: bool = False
    overruled: tuple[Mapping[str, Any], ...] = ()
    unsure: Unsure = field(default_factory=Unsure)
    returned: tuple[str, ...] = ()

    def with_config(self, config: ServeConfig) -> Launch:
        """The same with the options of vLLM's configuration file, which the command's own beat."""
        words = [word for word, _ in config.words]
        heads = _spellings(name.partition(".")[0] for name in self.unread)
        written = [one[:3] for one in _flags_at(words) if _head(one[0]) not in heads]
        taken = _spellings(self.flags)
        named = [(full_name(name), value, at) for name, value, at in written]
        read = [one for one in named if one[0] not in taken]
        flags = {**{name: value for name, value, _ in read}, **self.flags}
        ordered = (*((name, value) for name, value, _ in written), *self._pairs)
        transfers, problem = transfers_of(ordered)
        model = flags.get("model")
        return replace(
            self,
            flags=flags,
            transfer=transfers[-1] if transfers else {},
            overruled=transfers[:-1],
            problem=problem,
            model=self.model or (model if isinstance(model, str) else None),
            config=config,
            origins={name: config.words[at][1] for name, _, at in read},
            ordered=ordered,
        )

    def started_with(self, exported: Iterable[str]) -> Launch:
        """The same where these are exported already: what the script sets them to is, too."""
        names = set(exported)
        kept = {k: one.value for k, one in self.withheld.items() if not one.by and k in names}
        reach = {name: value for name, value in kept.items() if value is not None}
        rest = {name: one for name, one in self.withheld.items() if name not in kept}
        unsure = replace(self.unsure, names=self.unsure.names | (kept.keys() - reach.keys()))
        return replace(self, environ={**self.environ, **reach}, withheld=rest, unsure=unsure)

    def told(self) -> Launch:
        """The same where all variables that vLLM has are told, and nothing of them is unsure."""
        sure = {k: v for k, v in self.environ.items() if not self.unsure.has(k)}
        return replace(self, environ=sure, unsure=Unsure())

    @property
    def _pairs(self) -> tuple[tuple[str, str | bool], ...]:
        return self.ordered or tuple(self.flags.items())

    def origin(self, *names: str) -> Origin | None:
        """Where the first of these flags, or a dotted form of it, was written in the file."""
        found = (
            origin
            for name in names
            for flag, origin in self.origins.items()
            if flag == name or flag.startswith(f"{name}.")
        )
        return next(found, None)

    @property
    def broken(self) -> bool:
        """Whether a backslash with a blank behind it ended the command too early."""
        return any(_BLANK.match(word) for word in self.args) or self.args[-1:] == (" ",)

    @property
    def concerns_vllm(self) -> bool:
        """Whether an option is there that is vLLM's, and no other program's."""
        heads = {name.partition(".")[0] for name in (*self.flags, *self.unread)}
        file = str(self.flags.get("config", "")).endswith((".yaml", ".yml"))
        return file or bool(heads & (_LOOKED_AT | _VLLMS)) or self.model is not None

    @property
    def known(self) -> bool:
        """Whether a flag that is not here is not given."""
        return not self.doubt and (self.config is None or self.config.known)

    @property
    def several(self) -> str:
        """What to say where other commands start vLLM too; empty where none does."""
        if len(self.lines) < 2:
            return ""
        lines = ", ".join(map(str, sorted(set(self.lines))))
        return (
            f"note: {len(self.lines)} commands of --serve start vLLM, in line {lines}; only one in "
            f"line {self.lines[-1]} was looked at"
        )

    @property
    def extras(self) -> tuple[Mapping[str, Any], ...]:
        """The extra config of every in-process connector of LMCache, alone or inside another."""
        found = (
            one.get("kv_connector_extra_config")
            for one in connectors(self.transfer)
            if is_in_process(one)
        )
        return tuple(one for one in found if isinstance(one, dict))

    @property
    def overrides(self) -> Mapping[str, Any]:
        """What LMCache's in-process connector sets with ``lmcache.KEY``."""
        prefix = "lmcache."
        return {
            name[len(prefix) :]: value
            for extra in self.extras
            for name, value in extra.items()
            if isinstance(name, str) and name.startswith(prefix)
        }

    @property
    def in_process(self) -> bool:
        """Whether the connector is LMCache's in-process one, alone or inside a MultiConnector."""
        return any(is_in_process(one) for one in connectors(self.transfer))

    def elsewhere(self, vllm: Version | None) -> str:
        """What keeps chunks in place of LMCache in vLLM's process, as the command chooses it.

        That reads no configuration of LMCache's; empty where nothing else is chosen.
        """
        if self.in_process or self.problem:
            return ""
        if self.transfer:
            return foreign(self.transfer, vllm)
        found = offloads(self.flags, vllm)
        backend = self.flags.get(OFFLOADING[0])
        if found.chooses is False or found.lmcache or found.stops:
            return ""
        if backend == "lmcache":
            return f"LMCache's server, which --{OFFLOADING[0]} {backend} stands for in this vLLM,"
        return f"--{OFFLOADING[1]}"

    def on(self, name: str) -> bool | None:
        """Whether a switch is on; None where it is not given."""
        found = self.flags.get(name)
        return None if found is None else found is not False

    def last(self, name: str) -> str | bool | None:
        """The value that counts of an option, by whichever of its names; None for none."""
        found = [value for one, value in self._pairs if full_name(one) in _spellings({name})]
        return found[-1] if found else None

    def parallel(self, name: str) -> int:
        """The number that an option gives; 1 where it is not given, or gives none."""
        text = self.last(name)
        try:
            return int(str(text)) if text is not None else 1
        except ValueError:
            return 1

    def is_unread(self, name: str) -> bool:
        """Whether an option is given with a value that is not known."""
        return bool(self.unread & _spellings({name}))

    @property
    def graphs(self) -> str | None:
        """The CUDA graph mode that the compilation config names, in capitals."""
        return self.compiling(None).mode

    def compiling(self, vllm: Version | None) -> Compiling:
        """What the options for compiling come to on a release; None for one that is not known."""
        return compiling(self._pairs, vllm)


def server_of(command: str) -> Launch | None:
    """The launch of a running process by its command; None where that starts no vLLM server.

    The flags of a script that builds its engine by itself, and of a worker, say nothing of the
    connector.
    """
    words = shlex.split(command)
    launch = parse_words(words)
    return launch if wrapper.start_of(words, texts=False) or launch.transfer else None


def parse_words(words: Sequence[str]) -> Launch:
    """Take the words apart that a program was started with."""
    words = list(words)
    environ: dict[str, str] = {}
    while words and (wrapper_words.ASSIGNMENT.match(words[0]) or words[0] in ("env", "export")):
        name, _, value = words.pop(0).partition("=")
        if name not in ("env", "export"):
            environ[name] = value
    return from_arguments([Argument(word) for word in words], environ)


def from_arguments(
    arguments: Sequence[Argument], environ: Mapping[str, str], folder: str | None = None
) -> Launch:
    """Take a command apart, of which not all may be known.

    Args:
        arguments: its words, without variables in front.
        environ: what they are set to.
        folder: where it runs; None where that is not told.
    """
    words = [one.text for one in arguments]
    flags, unread, doubts = {}, set(), []
    given_flags = list(_flags_at(words))
    for name, value, place, behind in given_flags:
        given = arguments[place + behind]
        if given.computed and (behind or given.text.startswith("-")):
            unread.add(full_name(name))
        else:
            flags[full_name(name)] = value
    for place, one in enumerate(arguments):
        if one.computed and not _is_value(arguments, place):
            doubts.append(one.name or "a part of it")
    heads = {name.partition(".")[0] for name in unread}
    doubts += [f"the value of --{head}" for head in sorted(heads & _LOOKED_AT)]
    heads = _spellings(heads)
    flags = {name: value for name, value in flags.items() if name.partition(".")[0] not in heads}
    # The same flag may be there again, which counts where it is dotted.
    ordered = tuple(one[:2] for one in given_flags if full_name(one[0]) in flags)
    transfers, problem = transfers_of(ordered)
    model = None
    if "serve" in words and words.index("serve") + 1 < len(words):
        following = words[words.index("serve") + 1]
        model = None if following.startswith("-") else following
    named = flags.get("model")
    at = wrapper.program(words)
    told = " and ".join(dict.fromkeys(doubts))
    return Launch(
        flags,
        environ,
        transfers[-1] if transfers else {},
        problem,
        model or (named if isinstance(named, str) else None),
        () if at is None else tuple(words[at + 1 :]),
        folder,
        doubt=f"{told}: the shell puts it together when the command runs" if told else "",
        unread=frozenset(unread),
        ordered=ordered,
        overruled=transfers[:-1],
    )


def _head(name: str) -> str:
    """The name of the option that a flag is of, whole."""
    return full_name(name).partition(".")[0]


def _spellings(names: Iterable[str]) -> set[str]:
    """Names of options, with the other names of each."""
    found = set(names)
    return found.union(*(same for same in _SAME if same & found))


def _is_value(arguments: Sequence[Argument], place: int) -> bool:
    """Whether a word that is not known is one option's value, and nothing else, for certain."""
    before = arguments[place - 1] if place else Argument("")
    if not arguments[place].single:
        return before.text == "--config"
    if re.match(r"--?[A-Za-z][^=]*=", arguments[place].text):
        return True
    name = before.text.lstrip("-").replace("_", "-").removeprefix("no-")
    flag = before.text.startswith("-") and "=" not in before.text and not before.computed
    return before.text in ("serve", "vllm") or not place or (flag and name not in SWITCHES)


def _flags_at(words: Sequence[str]) -> Iterator[tuple[str, str | bool, int, int]]:
    """Name, value and place of each flag, and how far behind it the value stands."""
    taken = -1
    for place, word in enumerate(words):
        if place == taken or not re.match(r"--?[A-Za-z]", word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        # vLLM takes underscores for dashes in the name, not in what stands behind a dot.
        head, dot, tail = name.partition(".")
        name = head.replace("_", "-") + dot + tail
        if equals:
            yield name, value, place, 0
            continue
        following = words[place + 1] if place + 1 < len(words) else "--"
        switch = full_name(name)
        if dot and place + 1 < len(words):
            # Of a dotted form the next word is the value, whatever it is.
            taken = place + 1
            yield name, following, place, 1
        elif switch.removeprefix("no-") in SWITCHES:
            yield switch.removeprefix("no-"), not switch.startswith("no-"), place, 0
        elif following.startswith("-") and not re.match(r"-\d", following):
            yield name, True, place, 0
        else:
            yield name, following, place, 1
