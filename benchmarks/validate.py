"""Times ``kvpatch validate`` of every pair against the least that its work can cost.

The floor, measured in the same run, is a sum of three, one after the other, by one thread: the same
ranges fetched bare by the same client, the patched files parsed with libcst, the other files it
read parsed with ``ast``. validate itself fetches several wheels at once, plans meanwhile, and has a
second process on a second processor; beside the floor stands what it would be with the fetch as
parallel as that, and it is held to that too. Warm is a second run.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import libcst
from kvpatch import codebase, matrix, ranged
from kvpatch.connection import connection
from kvpatch.index import configured, releases
from kvpatch.supply import FIRST, Request
from kvpatch.validate import validate

LIMIT_COLD, LIMIT_WARM, LIMIT_BYTES, LIMIT_MB = 1.5, 0.1, 1 / 200, 600


def main() -> int:
    """Measure; exit 1 where a limit is missed."""
    gc.disable()
    asked: list[tuple[str, int, int]] = []
    read: dict[int, bytes] = {}
    patched: dict[int, bytes] = {}
    ask, of, planned = ranged.RangedFile._ask, codebase.Facts.of, matrix.Workshop.planned

    def asking(self: ranged.RangedFile, start: int, end: int) -> tuple[bytes, int]:
        asked.append((self._url, start, end))
        return ask(self, start, end)

    def reading(self: codebase.Facts, content: bytes) -> object:
        read[hash(content)] = content
        return of(self, content)

    def planning(self: matrix.Workshop, release: object, other: object) -> object:
        found = planned(self, release, other)  # type: ignore[arg-type]
        patched.update((hash(file.content), file.content) for file in found.plan.files)
        return found

    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        request = Request(dict.fromkeys(FIRST, ""))
        before = processor()
        with mock.patch.object(ranged.RangedFile, "_ask", asking):
            cold = timed(lambda: validate(request, cache, say))
        used = processor() - before
        peak = memory()
        warm = timed(lambda: validate(request, cache, say))
        # Once more without a second process, to see which files it takes; nothing is fetched.
        shutil.rmtree(cache / "verdicts")
        with contextlib.ExitStack() as watching:
            watching.enter_context(mock.patch.object(codebase.Facts, "of", reading))
            watching.enter_context(mock.patch.object(matrix.Workshop, "planned", planning))
            again = validate(replace(request, jobs=1), cache, say)
        assert again.traffic.requests == 0
        wheels = [w for name, spec in FIRST.items() for w in releases(name, spec, cache=cache)]
    jobs = request.jobs
    parts = {
        "fetch": timed(lambda: fetch(asked, 1)),
        "libcst": timed(lambda: [libcst.parse_module(content) for content in patched.values()]),
        "ast": timed(lambda: [parse(c) for key, c in read.items() if key not in patched]),
    }
    floor = sum(parts.values())
    parallel = timed(lambda: fetch(asked, jobs))
    harder = floor - parts["fetch"] + parallel
    share = sum(end - start for _, start, end in asked) / sum(w.size or 0 for w in wheels)
    rows = [
        ("cold, of the floor", cold / floor, LIMIT_COLD),
        ("cold, of the harder one", cold / harder, LIMIT_COLD),
        ("warm, of cold", warm / cold, LIMIT_WARM),
        ("bytes read, of the wheels", share, LIMIT_BYTES),
        ("peak memory, MB", peak, LIMIT_MB),
    ]
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())
    print(f"cold {cold:.1f} s ({used:.1f} s of CPU), warm {warm:.2f} s")
    print(f"floor {floor:.1f} s: {told}")
    print(f"with the fetch in {parallel:.1f} s, {jobs} at once, the floor is {harder:.1f} s")
    print(f"{len(asked)} ranges, {len(patched)} patched files, {len(read)} files read")
    for name, value, limit in rows:
        print(f"{name:26} {value:8.4f}  limit {limit:8.4f}  {'ok' if value <= limit else 'MISSED'}")
    return int(any(value > limit for _, value, limit in rows))


def fetch(asked: list[tuple[str, int, int]], jobs: int) -> None:
    """The same ranges, over connections that are kept open."""
    with connection(configured(), threads=jobs) as session, ThreadPoolExecutor(jobs) as pool:

        def get(item: tuple[str, int, int]) -> int:
            url, start, end = item
            headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
            return len(session.get(url, headers=headers, timeout=60).content)

        got = sum(pool.map(get, asked))
    assert got == sum(end - start for _, start, end in asked)


def parse(content: bytes) -> None:
    """The bare parse."""
    with contextlib.suppress(SyntaxError):
        ast.parse(content)


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr)


def processor() -> float:
    """Seconds of CPU that this process and those it has ended have used."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in both)


def memory() -> float:
    """The most memory in MB that this process and the largest of those it has ended have held."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_maxrss for used in both) / 1024


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall time."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
