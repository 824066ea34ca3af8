"""What ``kvpatch doctor`` examines: a host, and the configuration that it was asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from . import environment, serve_file, templates
from .coercion import CONFIG_VARIABLE, effective
from .curing import pair_on
from .fsops import Disk
from .host import Host, Where, open_host
from .launch import Launch, server_of
from .model_config import LeftOutError, Model, read_model
from .model_runner import built_for_cpu
from .outcome import KvpatchError
from .process_path import changed_since, compared, config_of
from .processes import server_behind
from .render import render
from .schema import Schema
from .schema_source import read_schema
from .sizing import Wanted
from .templates import Pair, Template
from .yaml_source import YamlFile, parse_yaml, read_yaml


@dataclass(frozen=True)
class Asked:
    """What the user named; None for what was not named."""

    profile: str | None = None
    config: Path | None = None
    model: Path | None = None
    gds_path: str | None = None
    pid: int | None = None
    write: bool = True


@dataclass(frozen=True)
class Subject:
    """The host, with what several checks look at; ``template`` is of the profile that is meant.

    ``left_out`` says why there is no ``model``, though one was named.
    """

    host: Host
    lmcache: Version
    vllm: Version | None
    template: Template
    schema: Schema
    pair: Pair
    values: Mapping[str, Any]
    file: YamlFile
    environ: Mapping[str, str] | None = None
    launch: Launch | None = None
    config_at: str = ""
    config_changed: bool = False
    model: Model | None = None
    left_out: LeftOutError | None = None

    @property
    def python(self) -> Path | None:
        """The interpreter of the environment; None where it is not known."""
        found = self.host.environment.interpreter
        return found.executable if found else None

    @property
    def on_cpu(self) -> bool:
        """Whether the vLLM is known to be one for CPUs."""
        found = self.host.environment.packages.get("vllm")
        return found is not None and built_for_cpu(found.distribution, self.vllm)

    @property
    def site(self) -> Path:
        """The folder that LMCache is installed in."""
        return self.host.environment.packages["lmcache"].site


def subject_of(where: Where, disk: Disk, asked: Asked) -> Subject:
    """Look up what was asked for.

    Raises:
        KvpatchError: exit 2 for a model that is none; 4 where there is no LMCache, or a file named
            can't be read.
    """
    if asked.pid is not None:
        asked = replace(asked, pid=server_behind(asked.pid))
    host = open_host(where, disk, needs="lmcache")
    model, left_out = _model(asked.model, host)
    found, beside = host.tree.package("lmcache"), host.tree.package("vllm")
    if found is None:
        raise RuntimeError("LMCache was located, and then was not")
    schema = read_schema(partial(host.tree.content, "lmcache"), str(found.version))
    pair = pair_on(host, found.version, beside.version if beside else None)
    profile = None if asked.profile is None else templates.load(asked.profile)
    file = YamlFile("-", "")
    named = asked.config
    environ, launch = None, None
    shown, config_at, changed = "", "", False
    if asked.pid is not None:
        environ = environment.from_process(asked.pid)
        launch = server_of(environment.command_of(asked.pid))
        if launch is not None:
            launch = serve_file.followed(launch, pair.vllm, serve_file.of_process(asked.pid))
        found_at = environ.get(CONFIG_VARIABLE)
        changed = bool(found_at) and changed_since(asked.pid, found_at or "")
        if found_at and named is not None:
            config_at = compared(asked.pid, found_at)
        if asked.profile is None and named is None:
            # The one that the process itself was given; its variables alone where it was not.
            if found_at:
                named, shown = config_of(asked.pid, found_at)
                config_at = shown
            file = YamlFile(f"/proc/{asked.pid}/environ", "", written=False)
    if named is not None:
        file = read_yaml(named, shown)
    elif profile is not None and profile.kind == "lmcache":
        settings = {"gds_path": asked.gds_path} if asked.gds_path and profile.gds else {}
        try:
            file = parse_yaml(
                render(profile.name, schema, pair, settings, Wanted(model=model)).text
            )
        except KvpatchError as error:
            if error.code != "no-cure":
                raise
    values = effective(
        schema,
        file.values if file.readable else {},
        environ,
        launch.overrides if launch else None,
        alone=not file.written,
    )
    known = {name: values.get(name) for name in schema.keys}
    template = profile or _template(asked, file, known)
    pair = replace(pair, by_layer=bool(known.get("use_layerwise")))
    if template.kind == "vllm":
        pair = replace(pair, lmcache=None)
    return Subject(
        host,
        found.version,
        pair.vllm,
        template,
        schema,
        pair,
        known,
        file,
        environ,
        launch,
        config_at,
        changed,
        model,
        left_out,
    )


def _model(named: Path | None, host: Host) -> tuple[Model | None, LeftOutError | None]:
    """The model; or why not all of it is known, which keeps nothing else from being examined."""
    if named is None:
        return None, None
    found = host.environment.interpreter
    try:
        return read_model(named, python=found.executable if found else None), None
    except LeftOutError as error:
        return None, error


def _template(asked: Asked, file: YamlFile, values: Mapping[str, Any]) -> Template:
    """The profile that is meant where none is named: that of a configuration, or blending."""
    if not file.readable or (asked.config is None and asked.pid is None):
        return templates.load("blend")
    return templates.like(
        blends=bool(values.get("enable_blending")), gds=bool(values.get("gds_path"))
    )
