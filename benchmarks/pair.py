"""Times status and apply on the real pair, with the patches of both packages, against floors.

Beside planning, ``apply`` reads the letters of the pair before and after its plan, from some two
hundred files. That is measured by itself, against the bare ``ast.parse`` of those files, and left
out of ``apply`` as fsync is.
"""

from __future__ import annotations

import ast
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path

from kvpatch.codebase import Facts
from kvpatch.compat import check_tree
from kvpatch.fsops import Disk
from kvpatch.host import Choice, View, Where, open_host, view
from kvpatch.installed import InstalledTree
from kvpatch.outlook import outlook
from kvpatch.plan import Options
from kvpatch.stack import default_cache, ensure
from kvpatch.trial import LMCACHE, VLLM
from speed import KVPATCH, QUIET, WITHOUT_FSYNC, Result, code, measure, timed

PARSE = """
import click, libcst, pathlib, sys
for path in sys.argv[1:]:
    libcst.parse_module(pathlib.Path(path).read_bytes()).bytes
"""


class Watched(InstalledTree):
    """The installed tree, with note of the contents that are read of it."""

    @cached_property
    def seen(self) -> dict[bytes, None]:
        """What was read."""
        return {}

    def content(self, name: str, path: str) -> bytes | None:
        """As the tree does it."""
        found = super().content(name, path)
        if found is not None:
            self.seen[found] = None
        return found


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
    seen = view(open_host(Where(python=python), Disk()), Choice((), (), Options()))
    read = letters(seen)
    parse = folder / "parse.py"
    parse.write_text(PARSE)
    changed = [str(site / file.path) for file in seen.plan.changes]
    floor = [sys.executable, str(parse), *changed]

    def plain() -> None:
        subprocess.run(revert, check=True, **QUIET)

    bare = {"click": code("import click"), "start": start}
    pristine = measure({"status": status, **bare})
    applied = measure({"apply": apply, "floor": floor, "start": start}, plain)
    plain()
    subprocess.run(apply, check=True, **QUIET)
    ours = measure({"status": status, **bare})
    planned = applied["apply"] - read.seconds
    return [
        *(
            Result(name, times["status"], 3 * times["click"] + times["start"], 1.0)
            for name, times in (("status, pristine pair", pristine), ("status, our pair", ours))
        ),
        read,
        Result("apply on the pair", planned, applied["floor"] + applied["start"], 1.3),
    ]


def letters(seen: View) -> Result:
    """Reading the letters of the pair, before and after the plan."""
    watched = Watched(seen.host.environment, seen.host.tree.sites)
    check_tree(watched, seen.selection.series.members, Facts())
    files = [*watched.seen, *(file.after or b"" for file in seen.plan.changes)]

    def parse() -> None:
        for content in files:
            ast.parse(content)

    gc.disable()
    times = [(timed(lambda: outlook(seen)), timed(parse)) for _ in range(5)]
    gc.enable()
    least, floor = map(min, zip(*times, strict=True))
    return Result("letters of the pair", least, floor, 3.0)


if __name__ == "__main__":
    sys.exit(main())
