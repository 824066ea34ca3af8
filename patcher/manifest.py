"""Files by which containers are started, given in the place of LMCache's."""

from __future__ import annotations

import re

from .outcome import ExitCode, KvpatchError
from .rules import one_line
from .yaml_source import YamlFile

_TOP = re.compile(r"^(\w+):(?:\s|$)", re.MULTILINE)


def see_no_manifest(file: YamlFile) -> None:
    """See that a file is none for Kubernetes or docker compose.

    Raises:
        KvpatchError: ``no-configuration``, exit 2.
    """
    # One may hold several documents, or a template's marks, and is then not read.
    names = {*file.entries} or {*_TOP.findall(file.text)}
    kind = "Kubernetes" if {"apiVersion", "kind"} <= names else "docker compose"
    if kind != "Kubernetes" and "services" not in names:
        return
    data = file.values.get("data")
    inner = [
        f"data.{name}"
        for name, value in (data.items() if isinstance(data, dict) else ())
        if isinstance(value, str) and str(name).endswith((".yaml", ".yml"))
    ]
    where = f", which stand under {one_line(' and '.join(inner))}," if inner else ""
    raise KvpatchError(
        "no-configuration",
        f"{file.path} is YAML for {kind}, and no configuration of LMCache's",
        f"write LMCache's keys{where} into a file of their own and name that; write out what is "
        "started: --serve 'vllm serve MODEL ...' for the command, and --env-file FILE with a line "
        "of NAME=VALUE for each of its variables",
        ExitCode.USAGE,
    )
