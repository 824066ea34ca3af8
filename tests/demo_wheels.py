"""Small real wheels of ``demo``, and which of them real pip and uv take from where."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from web import Answer, Asked

INIT = "demo/__init__.py"


def name_of(version: str) -> str:
    return f"demo-{version}-py3-none-any.whl"


def wheel(version: str, mark: str) -> bytes:
    """A wheel that pip and uv install; ``mark`` is the text of its one module."""
    info = f"demo-{version}.dist-info"
    texts = {
        INIT: mark,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},{hash_of(text.encode())},{len(text)}\n" for path, text in texts.items()]
    texts[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
    return stream.getvalue()


def hash_of(data: bytes) -> str:
    digest = urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def mark_of(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read(INIT).decode()


class Indexes:
    """Several indexes on one server: ``/a/simple/``, its files below ``/a/files/``, and more.

    A wheel's mark is the letter of the index it is on.
    """

    def __init__(self, **versions: str) -> None:
        self.files = {
            f"/{letter}/files/{name_of(version)}": wheel(version, letter)
            for letter, several in versions.items()
            for version in several.split()
        }

    def links(self, letter: str) -> list[str]:
        return [path for path in self.files if path.startswith(f"/{letter}/")]

    def hash(self, link: str) -> str:
        return hashlib.sha256(self.files[link]).hexdigest()

    def __call__(self, asked: Asked) -> Answer:
        path = asked.path
        if path in self.files:
            return Answer(self.files[path])
        letter, _, rest = path.strip("/").partition("/")
        if rest == "links" and self.links(letter):
            text = "".join(
                f'<a href="{link}#sha256={self.hash(link)}">cut sho..&gt;</a>\n'
                for link in self.links(letter)
            )
            return Answer(text.encode(), headers={"Content-Type": "text/html"})
        if rest != "simple/demo" or not self.links(letter):
            return Answer(b"", 404)
        files = [
            {
                "filename": link.rpartition("/")[2],
                "url": link,
                "hashes": {"sha256": self.hash(link)},
            }
            for link in self.links(letter)
        ]
        data = {"meta": {"api-version": "1.1"}, "name": "demo", "files": files}
        kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
        return Answer(json.dumps(data).encode(), headers=kind)


def pip_takes(wanted: str, environ: Mapping[str, str], folder: Path) -> str | None:
    """The mark of the wheel that pip takes; None where it takes none."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "-q"]
    subprocess.run(
        [*command, "--retries", "0", "-d", folder, wanted],
        env=environ,
        cwd=folder.parent,
        capture_output=True,
        check=False,
    )
    found = [*folder.glob("*.whl")]
    return mark_of(found[0]) if found else None


def uv_takes(wanted: str, environ: Mapping[str, str], folder: Path) -> str | None:
    """The same of uv."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--no-cache", "-q"]
    subprocess.run(
        [*command, "--python", sys.executable, "--target", folder, wanted],
        env={**environ, "UV_HTTP_RETRIES": "0"},
        cwd=folder.parent,
        capture_output=True,
        check=False,
    )
    found = folder / INIT
    return found.read_text() if found.exists() else None
