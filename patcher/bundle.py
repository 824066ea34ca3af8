"""A profile as a folder: the file, the environment, the command, a service, and how to use them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import __version__, place
from .coercion import CONFIG_VARIABLE
from .comments import comment
from .outcome import ExitCode, KvpatchError
from .render import Rendered, header, label
from .serving import MODEL, Serve, quoted, shell
from .start_script import BIN, start_script
from .templates import Pair, Template
from .tier_folders import tier_folders

CONFIG_NAME = "lmcache.yaml"
_MOUNTED = "/etc/lmcache"
_NO_MODEL = (
    f"No model was named: write its folder, or its name on the hub, for the word {MODEL} in "
    "`serve.sh` and `compose.yaml`, or make this again with --model FOLDER. Then:"
)
_FIRST = {
    True: "First, since the pair does not run it as it is:",
    False: "First, where it is not done yet (no host was looked at):",
}


def files(
    template: Template,
    pair: Pair,
    made: Rendered,
    folder: Path,
    programs: Path | None = None,
    checked: Sequence[str] = (),
) -> Mapping[str, str]:
    """The files of the bundle by name.

    Args:
        template: of the profile.
        pair: what it is for.
        made: what was rendered, with the folder's ``lmcache.yaml`` as its path.
        folder: where they will be.
        programs: the absolute folder that has the environment's ``vllm``; None where not known.
        checked: the options that name what it is for to ``kvpatch lint``.
    """
    top = header(template, pair, made)
    found = {CONFIG_NAME: made.text} if made.text else {}
    found["vllm.env"] = _env(top, made.serve)
    config = CONFIG_NAME if made.text else ""
    told = [*top, "#", *comment(made.serve.why)]
    found["serve.sh"] = start_script(
        told, made.serve.argv, programs, config=config, patched=_patched(made)
    )
    name = f"vllm-{template.name}"
    found[f"{name}.service"] = _service(template, made, folder, programs)
    found["compose.yaml"] = _compose(template, pair, made)
    if made.serve.server:
        found["server.sh"] = start_script(top, made.serve.server, programs)
    found["README.md"] = _readme(template, pair, made, [*found], folder, programs, checked)
    return found


def _patched(made: Rendered) -> bool:
    """Whether what it needs is seen to by patches."""
    return any(need.patches for need in made.needs)


def _places(folder: Path, programs: Path | None, patched: bool) -> list[str]:
    """What happens where the folder or the environment lies elsewhere."""
    same = ", which needs the same patches" if patched else ""
    taken = (
        f"the vLLM in `{programs}`" if programs else "the vLLM on PATH (no environment was named)"
    )
    return [
        f"It takes {taken}; `{BIN}=DIR ./serve.sh` takes another{same}.",
        "Options behind it are added to the command: `./serve.sh --port 9000`.",
        "The folder may be copied: scripts and `compose.yaml` read the files beside them. The unit",
        f"and `vllm.env` name it as `{folder}`; change that where they are used.",
    ]


def write(folder: Path, texts: Mapping[str, str], *, force: bool) -> None:
    """Write the bundle into a folder that is empty or not there yet.

    Raises:
        KvpatchError: ``exists`` (exit 3), ``not-written`` (exit 4).
    """
    try:
        if folder.exists() and not force:
            there = sorted(set(texts) & {entry.name for entry in folder.iterdir()})
            if there:
                raise KvpatchError(
                    "exists",
                    f"{folder} has {', '.join(there)} already; nothing was written",
                    "name another folder, or write over them with --force",
                )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = folder / name
            path.write_text(text, "utf-8")
            if name.endswith(".sh"):
                path.chmod(0o755)
    except OSError as error:
        raise KvpatchError(
            "not-written",
            f"{folder} can't be written: {error.strerror}",
            "name a folder that may be made or written",
            ExitCode.ENVIRONMENT,
        ) from None


def script(top: Sequence[str], serve: Serve) -> str:
    """The commands to type, with what has to be known above them."""
    lines = [*top, "#", *comment(serve.why), ""]
    if serve.server:
        lines += ["# First, and to be left running:", f"PYTHONHASHSEED=0 {shell(serve.server)}", ""]
    lines += [f"export {name}={quoted(value)}" for name, value in serve.environ.items()]
    return "\n".join([*lines, shell(serve.argv)])


def _env(top: Sequence[str], serve: Serve) -> str:
    lines = [*top, "#", "# For systemd's EnvironmentFile, or a shell: set -a; . ./vllm.env"]
    if CONFIG_VARIABLE in serve.environ:
        lines += comment(
            f"{CONFIG_VARIABLE} is where this was made. serve.sh takes the file beside it instead."
        )
    lines.append("")
    return "\n".join([*lines, *(f"{n}={quoted(v)}" for n, v in serve.environ.items()), ""])


def programs_of(python: Path | None) -> Path | None:
    """The folder of an environment's commands, where it has ``vllm`` and a unit can name it.

    Args:
        python: the interpreter, or the folder of the environment; None where not known.
    """
    if python is None:
        return None
    # Not resolved: the interpreter of a venv is a link out of it.
    found = Path(os.path.abspath(python / "bin" if python.is_dir() else python.parent))  # noqa: PTH100
    plain = str(found).isprintable() and ":" not in str(found)
    return found if plain and (found / "vllm").is_file() else None


def _service(template: Template, made: Rendered, folder: Path, programs: Path | None) -> str:
    start = _systemd(str(folder / "serve.sh"), command=True)
    lines = [
        f"# Made by kvpatch {__version__}. Copy it to /etc/systemd/system, then:",
        f"#   systemctl daemon-reload && systemctl enable --now vllm-{template.name}",
        "# Where the folder is moved, change ExecStart.",
        "[Unit]",
        f"Description=vLLM with the kvpatch profile {template.name}",
        "After=network-online.target",
        "Wants=network-online.target",
    ]
    storage = _storage(template, made)
    if storage:
        # Unmounted, the folder would be made on the root file system.
        lines.append(f"RequiresMountsFor={' '.join(map(_systemd, storage))}")
    if made.serve.server:
        lines.append("# Start server.sh before it, as a service of its own.")
    lines += [
        "",
        "[Service]",
        *_path(programs),
        f"ExecStart=/usr/bin/env bash {start}",
        "Restart=on-failure",
        "LimitMEMLOCK=infinity",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def _path(programs: Path | None) -> list[str]:
    """The lines of a unit by which vLLM's command is found."""
    if programs is None:
        return [
            "# PATH must find the environment's vllm, for example:",
            "# Environment=PATH=/srv/vllm/bin:/usr/local/bin:/usr/bin:/bin",
        ]
    return [f"Environment={_systemd(f'PATH={programs}:/usr/local/bin:/usr/bin:/bin')}"]


def _systemd(text: str, *, command: bool = False) -> str:
    """A word as systemd reads it, which takes a dollar for a variable in commands alone."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if command else escaped}"'


def _compose(template: Template, pair: Pair, made: Rendered) -> str:
    image, own = _image(template, pair, patched=_patched(made))
    argv = [word.replace("$", "$$") for word in made.serve.argv[2:]]
    environ = {
        name: f"{_MOUNTED}/{CONFIG_NAME}" if name == CONFIG_VARIABLE else value
        for name, value in made.serve.environ.items()
    }
    volumes = [f'"./{CONFIG_NAME}:{_MOUNTED}/{CONFIG_NAME}:ro"'] if made.text else []
    volumes += [_volume(folder) for folder in _storage(template, made)]
    model = made.serve.argv[2]
    if model.startswith("/"):
        volumes.append(_volume(model, read_only=True))
    lines = [
        f"# Made by kvpatch {__version__}: docker compose up",
        *own,
        "services:",
        "  vllm:",
        f"    image: {image}",
        # Older images start an entry point that takes no model as a word of its own.
        f"    entrypoint: {json.dumps(made.serve.argv[:2])}",
        f"    command: {json.dumps(argv)}",
        "    environment:",
        *(f"      {name}: {json.dumps(value)}" for name, value in environ.items()),
        '    ports: ["8000:8000"]',
        "    ipc: host",
        "    ulimits: {memlock: -1}",
    ]
    if made.serve.server:
        lines.append("    network_mode: host")
        lines.remove('    ports: ["8000:8000"]')
    if volumes:
        lines += ["    volumes:", *(f"      - {volume}" for volume in volumes)]
    if template.gds:
        lines += ["    devices: [/dev/nvidia-fs0:/dev/nvidia-fs0]", "    privileged: true"]
    lines += [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices: [{driver: nvidia, count: all, capabilities: [gpu]}]",
    ]
    if made.serve.server:
        lines += [
            "  lmcache:",
            f"    image: {image}",
            f"    entrypoint: {json.dumps(list(made.serve.server))}",
            '    environment: {PYTHONHASHSEED: "0"}',
            "    network_mode: host",
            "    ipc: host",
            (
                "    deploy: {resources: {reservations: "
                "{devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}"
            ),
        ]
    return "\n".join([*lines, ""])


def _volume(folder: str, *, read_only: bool = False) -> str:
    """A folder of the host at the same place inside, as compose has it in YAML."""
    # Compose takes a dollar for a variable, and in the short form a colon for the end of a path.
    told = folder.replace("$", "$$")
    if ":" not in folder:
        return json.dumps(f"{told}:{told}{':ro' if read_only else ''}")
    parts: dict[str, str | bool] = {"type": "bind", "source": told, "target": told}
    return json.dumps({**parts, "read_only": True} if read_only else parts)


def _image(template: Template, pair: Pair, *, patched: bool) -> tuple[str, list[str]]:
    """The image, and what has to be known of it as comment lines."""
    released = f"vllm/vllm-openai:{f'v{pair.vllm.public}' if pair.vllm else 'latest'}"
    if template.kind == "vllm":
        return released, comment("It needs vLLM alone: no LMCache, and no patches of kvpatch.")
    local = [
        f"{name} {release}"
        for name, release in (("vLLM", pair.vllm), ("LMCache", pair.lmcache))
        if release is not None and release.local
    ]
    if not local:
        more = ", and the patches of kvpatch: run `kvpatch apply`" if patched else ": install it"
        return released, comment(
            f"The image needs LMCache beside vLLM{more} in a layer of your own on top of it."
        )
    # A tag can't have a plus.
    tag = str(pair.vllm).replace("+", "-") if pair.vllm else "own"
    name = f"vllm-own:{tag}"
    other = " and `kvpatch apply`" if patched else ""
    return name, comment(
        f"No public image has {' and '.join(local)}: build one by that name ({name}), on top of "
        f"{released}, with those wheels in it, or with LMCache{other}."
    )


def _storage(template: Template, made: Rendered) -> tuple[str, ...]:
    """The folders that chunks are kept in."""
    if template.kind == "vllm":
        return made.serve.folders
    import yaml

    return tier_folders(yaml.safe_load(made.text) if made.text else {})


def _readme(
    template: Template,
    pair: Pair,
    made: Rendered,
    names: Sequence[str],
    folder: Path,
    programs: Path | None,
    checked: Sequence[str],
) -> str:
    lmcache = f"LMCache {pair.lmcache}" if pair.lmcache else "no LMCache"
    vllm = f"vLLM {pair.vllm}" if pair.vllm else "no vLLM named"
    lines = [f"# {template.name}", "", template.purpose.strip(), "", f"For {vllm} and {lmcache}."]
    lines += [f"Made by kvpatch {__version__}.", "", "## Start", ""]
    missing = [need for need in made.needs if need.present is not True]
    if missing:
        lines += [_FIRST[bool(pair.absent) or any(need.present is False for need in missing)], ""]
        lines += [f"- {label(need)}, {need.what}: {need.hint}" for need in missing] + [""]
    if made.serve.argv[2] == MODEL:
        lines += [_NO_MODEL, ""]
    if made.serve.server:
        lines += ["    ./server.sh    # first, and left running"]
    patched = _patched(made)
    lines += ["    ./serve.sh", "", *_places(folder, programs, patched), "", made.serve.why]
    lines += ["", "## Files", ""]
    told = {
        CONFIG_NAME: "LMCache's configuration; every value has its reason above it",
        "vllm.env": "the environment of every vLLM process",
        "serve.sh": "starts vLLM",
        "server.sh": "starts LMCache's server",
        "compose.yaml": "the same with docker compose"
        + ("; the image needs LMCache" if template.kind != "vllm" else "")
        + (" and the patches" if patched else ""),
    }
    lines += [f"- `{name}`: {told.get(name, 'a systemd unit')}" for name in names]
    if made.warnings or made.notes:
        lines += ["", "## To know", ""]
        lines += [f"- {' '.join(one.split())}" for one in (*made.warnings, *made.notes)]
    if made.text:
        words = place.command(f"lint {CONFIG_NAME} --serve serve.sh", checked, in_ascii=True)
        lines += ["", f"`{words}` checks what was changed here by hand."]
    return "\n".join([*lines, ""])
