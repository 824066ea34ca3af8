"""Runs kvpatch's command line for tests, and looks at folders before and after."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_site import FakeSite
from kvpatch import cli
from kvpatch.fsops import Disk


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def envelope(self) -> dict[str, Any]:
        """Stdout, which must be one JSON envelope and nothing else."""
        found: dict[str, Any] = json.loads(self.out)
        assert found["exit_code"] == self.code
        return found

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.envelope["data"]
        return data

    @property
    def error(self) -> dict[str, str]:
        """The first error."""
        error: dict[str, str] = self.envelope["errors"][0]
        return error

    @property
    def outcomes(self) -> dict[str, str]:
        return {patch["id"]: patch["outcome"] for patch in self.data["patches"]}

    @property
    def reasons(self) -> str:
        return " | ".join(patch["reason"] for patch in self.data["patches"])

    @property
    def state(self) -> str:
        """What the one file is."""
        (file,) = self.data["files"]
        return str(file["state"])


def kvpatch(*args: object, disk: Disk | None = None) -> Ran:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([str(arg) for arg in args], disk=disk)
        except SystemExit as exit_:
            code = exit_.code
    assert isinstance(code, int)
    return Ran(code, out.getvalue(), err.getvalue())


def on(site: FakeSite | Path, verb: str, *args: object, disk: Disk | None = None) -> Ran:
    """Run a verb on a site folder, with ``--json``."""
    path = site.path if isinstance(site, FakeSite) else site
    return kvpatch(verb, "--site", path, "--json", *args, disk=disk)


def process(
    *args: object, python: object = sys.executable, env: Mapping[str, str] | None = None
) -> Ran:
    """Run ``python -m kvpatch`` as a process of its own, outside of any checkout."""
    done = subprocess.run(
        [str(python), "-m", "kvpatch", *(str(arg) for arg in args)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**clean_environ(), **(env or {})},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def clean_environ() -> dict[str, str]:
    """This process's environment without what leads Python, pip, uv or kvpatch elsewhere."""
    dropped = ("PYTHON", "VIRTUAL_ENV", "PIP_", "UV_", "KVPATCH", "_KVPATCH", "NO_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


Seen = dict[str, tuple[object, ...]]


def snapshot(root: Path) -> Seen:
    """Every name below a folder with its kind, mode and contents."""
    found: Seen = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            status = path.lstat()
            content: object = None
            if path.is_symlink():
                content = os.fspath(path.readlink())
            elif path.is_file():
                content = path.read_bytes()
            found[str(path.relative_to(root))] = (oct(status.st_mode), content)
    return found


def differing(site: Path) -> list[str]:
    """The files of a site folder that are not what their RECORD says."""
    wrong = []
    for record in site.glob("*.dist-info/RECORD"):
        for path, expected, _ in csv.reader(record.read_text().splitlines()):
            if not expected:
                continue
            kind, _, value = expected.partition("=")
            data = (site / path).read_bytes() if (site / path).is_file() else b""
            digest = base64.urlsafe_b64encode(hashlib.new(kind, data).digest())
            if digest.rstrip(b"=").decode() != value:
                wrong.append(path)
    return wrong


def make_venv(prefix: Path) -> tuple[Path, Path]:
    """A virtual environment of the interpreter that runs the tests: its Python and site folder."""
    base = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    (prefix / "bin").mkdir(parents=True)
    python = prefix / "bin" / "python"
    python.symlink_to(base)
    (prefix / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
    )
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = prefix / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    return python, site
