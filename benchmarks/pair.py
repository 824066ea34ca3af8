"""Times status and apply on the real pair, with the patches of both packages, against floors.

Beside planning, ``apply`` reads the letters of the pair before and after its plan, from some two
hundred files. So its floor has their bare ``ast.parse``, beside one start of the target, the
imports, and the bare libcst parse and code generation of the files that change.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kvpatch.codebase import Facts
from kvpatch.compat import check_tree
from kvpatch.fsops import Disk
from kvpatch.host import Choice, Where, open_host, view
from kvpatch.installed import InstalledTree
from kvpatch.plan import Options
from kvpatch.stack import default_cache, ensure
from kvpatch.trial import LMCACHE, VLLM
from speed import KVPATCH, QUIET, WITHOUT_FSYNC, Result, code, measure

PARSE = """
import ast, click, json, libcst, pathlib, sys
site = pathlib.Path(sys.argv[1])
files = json.loads(pathlib.Path(sys.argv[2]).read_text())
for path in files["changed"]:
    libcst.parse_module((site / path).read_bytes()).bytes
for path in files["read"]:
    ast.parse((site / path).read_bytes())
"""


class Watched(InstalledTree):
    """The installed tree, with note of what is read of it."""

    def content(self, name: str, path: str) -> bytes | None:
        """As the tree does it."""
        found = super().content(name, path)
        if found is not None:
            self.seen.setdefault(path)
        return found

    @property
    def seen(self) -> dict[str, None]:
        """The paths of the files that were read."""
        return self.__dict__.setdefault("_seen", {})


def files_of(python: Path) -> dict[str, list[str]]:
    """The files that an apply changes there, and the others that it reads letters from."""
    host = open_host(Where(python=python), Disk())
    seen = view(host, Choice((), (), Options()))
    changed = [file.path for file in seen.plan.changes]
    watched = Watched(host.environment, host.tree.sites)
    check_tree(watched, seen.selection.series.members, Facts())
    return {"changed": changed, "read": [path for path in watched.seen if path not in changed]}


def main() -> int:
    """Measure on a copy of the real environment; exit 1 where a limit is missed."""
    stack = ensure(VLLM, LMCACHE, cache=default_cache(), say=print)
    with tempfile.TemporaryDirectory(dir=stack.root.parent) as folder:
        copy = Path(folder) / "environment"
        shutil.copytree(stack.root, copy, symlinks=True, copy_function=os.link)
        results = pair_results(copy, Path(folder))
    print("\n".join(result.line for result in results))
    return int(any(result.seconds > result.limit * result.floor for result in results))


def pair_results(environment: Path, folder: Path) -> list[Result]:
    """``status`` as released and patched, and ``apply``, fsync apart."""
    python = environment / "bin" / "python"
    site = next(environment.glob("lib/python3.*/site-packages"))
    where = ["--python", str(python), "--json"]
    status, revert = (
        code(KVPATCH.format(arguments=[verb, *where])) for verb in ("status", "revert")
    )
    apply = code(WITHOUT_FSYNC + KVPATCH.format(arguments=["apply", *where]))
    start = [str(python), "-I", "-c", ""]
    listed, parse = folder / "files.json", folder / "parse.py"
    listed.write_text(json.dumps(files_of(python)))
    parse.write_text(PARSE)
    floor = [sys.executable, str(parse), str(site), str(listed)]

    def plain() -> None:
        subprocess.run(revert, check=True, **QUIET)

    bare = {"click": code("import click"), "start": start}
    pristine = measure({"status": status, **bare})
    applied = measure({"apply": apply, "floor": floor, "start": start}, plain)
    plain()
    subprocess.run(apply, check=True, **QUIET)
    ours = measure({"status": status, **bare})
    return [
        Result(
            f"status of the pair, {name}", times["status"], 3 * times["click"] + times["start"], 1
        )
        for name, times in (("pristine", pristine), ("ours", ours))
    ] + [Result("apply on the pair", applied["apply"], applied["floor"] + applied["start"], 1.3)]


if __name__ == "__main__":
    sys.exit(main())
