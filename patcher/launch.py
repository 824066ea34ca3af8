"""A ``vllm serve`` command taken apart, as far as it concerns LMCache."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from . import script_path
from .dotted_options import NotReadError, json_of, merged
from .kv_connector import connectors, is_in_process, transfer_of
from .outcome import ExitCode, KvpatchError
from .serve_config import SWITCHES, Origin, ServeConfig
from .vllm_options import full_name

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SAME = (
    frozenset({"compilation-config", "cc", "O"}),
    frozenset({"tensor-parallel-size", "tp"}),
    frozenset({"pipeline-parallel-size", "pp"}),
)
"""Names of one option each."""


@dataclass(frozen=True)
class Launch:
    """A command's flags, and the KV connector's configuration.

    Attributes:
        flags: by name without dashes; True for a switch, False for its ``no-`` form.
        environ: variables that are set in front of the command.
        transfer: ``--kv-transfer-config``, or what its dotted forms say where there are any.
        problem: why that can't be read; empty where it can.
        model: the first word behind ``serve``.
        args: what vLLM is given, from ``serve`` on or behind its module; empty for no vLLM.
        folder: where the command changes to before; empty where that can't be known.
        config: what ``--config FILE`` came to; None where it names none, or nobody looked.
        origins: where those flags were written that the file set.
        ordered: all flags as vLLM has them one behind the other, where the file set some.
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
    ordered: tuple[tuple[str, str | bool], ...] = ()

    def with_config(self, config: ServeConfig) -> Launch:
        """The same with the options of vLLM's configuration file, which the command's own beat."""
        words = [word for word, _ in config.words]
        taken = set(self.flags).union(*(same for same in _SAME if same & set(self.flags)))
        written = list(_flags_at(words))
        read = [(name, value, at) for name, value, at in written if name not in taken]
        flags = {**{name: value for name, value, _ in read}, **self.flags}
        # The same flag may be there again, which counts where it is dotted.
        own = [one[:2] for one in _flags_at(self.args) if one[0] in self.flags]
        own = own or list(self.flags.items())
        ordered = (*((name, value) for name, value, _ in written), *own)
        transfer, problem = transfer_of(ordered)
        model = flags.get("model")
        return replace(
            self,
            flags=flags,
            transfer=transfer,
            problem=problem,
            model=self.model or (model if isinstance(model, str) else None),
            config=config,
            origins={name: config.words[at][1] for name, _, at in read},
            ordered=ordered,
        )

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
    def known(self) -> bool:
        """Whether a flag that is not here is not given."""
        return self.config is None or self.config.known

    @property
    def extra(self) -> Mapping[str, Any]:
        """The connector's ``kv_connector_extra_config``."""
        found = self.transfer.get("kv_connector_extra_config")
        return found if isinstance(found, dict) else {}

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
        """What LMCache's connector sets with ``lmcache.KEY``."""
        prefix = "lmcache."
        return {
            name[len(prefix) :]: value
            for extra in self.extras or (self.extra,)
            for name, value in extra.items()
            if isinstance(name, str) and name.startswith(prefix)
        }

    @property
    def in_process(self) -> bool:
        """Whether the connector is LMCache's in-process one, alone or inside a MultiConnector."""
        return any(is_in_process(one) for one in connectors(self.transfer))

    def on(self, name: str) -> bool | None:
        """Whether a switch is on; None where it is not given."""
        found = self.flags.get(name)
        return None if found is None else found is not False

    @property
    def graphs(self) -> str | None:
        """The CUDA graph mode that the compilation config names, in capitals."""
        (names,) = (same for same in _SAME if "cc" in same)
        pairs = self.ordered or tuple(self.flags.items())
        try:
            # What the dotted forms say comes last, one object for each spelling; the last counts.
            objects = list(merged(pairs, names).values())
            for name, text in () if objects else pairs:
                if name in names and isinstance(text, str) and text.startswith("{"):
                    objects.append(json_of(text))
        except NotReadError:
            return None
        mode = objects[-1].get("cudagraph_mode") if objects else None
        return None if mode is None else str(mode).upper()


def parse_script(text: str, here: str = "") -> Launch | None:
    """The command that starts vLLM in a shell script, with what is exported before it.

    What the script sources or computes is not followed, but for ``here``, the folder it is in,
    and the names of files and folders. None where no line starts vLLM.
    """
    environ: dict[str, str] = {}
    folders: dict[str, str] = {}
    folder: str | None = None
    left = ""
    for line in text.replace("\\\n", " ").splitlines():
        if not left and line.lstrip().startswith("#"):
            continue
        left += f"{line}\n"
        try:
            words = shlex.split(left)
        except ValueError:
            # A quoted word goes on in the next line.
            continue
        if _starts_vllm(words):
            found = _parsed(_one_command(words))
            within = {**environ, **folders}
            folder = script_path.changed(left, words, folder, within, here)
            args = script_path.config_named(found.args, within, here)
            environ = {**environ, **found.environ}
            return replace(found, environ=environ, folder=folder, args=args)
        folder = script_path.changed(left, words, folder, {**environ, **folders}, here)
        folders.update(script_path.own_folder(left, here))
        left = ""
        assigned = words[1:] if words[:1] == ["export"] else words
        if assigned and all(_ASSIGNMENT.match(word) for word in assigned):
            environ.update(_assigned(word) for word in assigned if not re.search("[$`]", word))
    return None


def server_of(command: str) -> Launch | None:
    """The launch of a running process by its command; None where that starts no vLLM server.

    The flags of a script that builds its engine by itself, and of a worker, say nothing of the
    connector.
    """
    launch = parse_launch(command)
    return launch if _starts_vllm(shlex.split(command)) or launch.transfer else None


def _starts_vllm(words: list[str]) -> bool:
    pairs = pairwise(words)
    served = any(one.rpartition("/")[2] == "vllm" and two == "serve" for one, two in pairs)
    return served or any(word.startswith("vllm.entrypoints.") for word in words)


def _one_command(words: list[str]) -> list[str]:
    """The words of the command that starts vLLM, of several on one line."""
    found: list[str] = []
    for word in words:
        if word in ("&&", "||", "|", ";", "&") or word.startswith("#"):
            if _starts_vllm(found):
                break
            found = []
        elif found or word not in ("exec", "nohup"):
            found.append(word)
    return found


def _assigned(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def parse_launch(text: str) -> Launch:
    """Take a command apart.

    Raises:
        KvpatchError: ``bad-command``, exit 2: a shell could not read it.
    """
    try:
        words = [word for word in shlex.split(text.replace("\\\n", " ")) if word != "\n"]
    except ValueError as error:
        raise KvpatchError(
            "bad-command",
            f"the --serve command is not one that a shell reads: {error}",
            "give it in one argument, as it is typed",
            ExitCode.USAGE,
        ) from None
    return _parsed(words)


def _parsed(words: list[str]) -> Launch:
    environ: dict[str, str] = {}
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("env", "export")):
        name, value = _assigned(words.pop(0))
        if name not in ("env", "export"):
            environ[name] = value
    flags = dict(_flags(words))
    transfer, problem = transfer_of(flags)
    model = None
    if "serve" in words and words.index("serve") + 1 < len(words):
        following = words[words.index("serve") + 1]
        model = None if following.startswith("-") else following
    named = flags.get("model")
    return Launch(
        flags,
        environ,
        transfer,
        problem,
        model or (named if isinstance(named, str) else None),
        tuple(_args(words)),
    )


def _args(words: Sequence[str]) -> Sequence[str]:
    """What the vLLM that words start is given."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == "vllm" and words[place + 1 : place + 2] == ["serve"]:
            return words[place + 1 :]
        if word.startswith("vllm.entrypoints."):
            return words[place + 1 :]
    return ()


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | bool]]:
    for name, value, _ in _flags_at(words):
        yield name, value


def _flags_at(words: Sequence[str]) -> Iterator[tuple[str, str | bool, int]]:
    """Name, value and place of each flag."""
    for place, word in enumerate(words):
        if word == "-O" or not re.match(r"--?[A-Za-z]", word):
            if word == "-O" and place + 1 < len(words):
                yield "O", words[place + 1], place
            continue
        name, equals, value = word.lstrip("-").partition("=")
        # vLLM takes underscores for dashes in the name, not in what stands behind a dot.
        head, dot, tail = name.partition(".")
        name = head.replace("_", "-") + dot + tail
        if word.startswith("--"):
            name = full_name(name)
        if equals:
            yield name, value, place
            continue
        following = words[place + 1] if place + 1 < len(words) else "--"
        if name.removeprefix("no-") in SWITCHES:
            yield name.removeprefix("no-"), not name.startswith("no-"), place
        elif following.startswith("-") and not re.match(r"-\d", following):
            yield name, True, place
        else:
            yield name, following, place
