"""Fetches ahead what the releases of a validate run need, several at once, while it plans.

Which files those are was written down when this kvpatch was made (``reads.json``): to find it out
takes as many answers of the index, one after the other, as there are files.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from pathlib import Path

from .matrix import Release, Say
from .outcome import ExitCode, KvpatchError
from .remote import RemoteWheel
from .tree import PACKAGES

_FILE = Path(__file__).with_name("reads.json")
_SCHEMA = 1

Reads = Mapping[str, Sequence[str]]
"""Package to the paths of the files that are read of any of its releases."""


def load() -> Reads:
    """The files that validating every release of the index took when this kvpatch was made."""
    data = json.loads(_FILE.read_text("utf-8"))
    return {name: tuple(data[name]) for name in PACKAGES}


def build(reads: Reads) -> str:
    """The JSON text that :func:`load` reads."""
    data = {"schema": _SCHEMA, **{name: sorted(reads[name]) for name in PACKAGES}}
    return json.dumps(data, indent=1) + "\n"


def reads_of(releases: Sequence[Release]) -> Reads:
    """The Python files that were read so far of some releases, not those that were but fetched."""
    found: dict[str, set[str]] = {name: set() for name in PACKAGES}
    for release in releases:
        if isinstance(release.holder, RemoteWheel):
            paths = release.holder.read_paths
            found[release.package].update(path for path in paths if path.endswith(".py"))
    return {name: tuple(sorted(paths)) for name, paths in found.items()}


@contextlib.contextmanager
def fetching(
    found: Sequence[Release], reads: Reads, jobs: int, say: Say
) -> Iterator[Callable[[Release], bool]]:
    """Fetch ahead what some releases are likely to need.

    Gives what waits for one of them, and says whether it could be fetched as far as it has to be.
    Several threads may wait, and for the same one.
    """
    remote = [release for release in found if isinstance(release.holder, RemoteWheel)]
    if not remote:
        yield lambda _: True
        return
    count = len(remote)
    say(f"reading {count} wheel{'' if count == 1 else 's'} by ranges")

    def fetch(release: Release) -> bool:
        if isinstance(release.holder, RemoteWheel):
            # What fails here fails again where it is read in earnest, and is reported there.
            try:
                release.holder.prefetch([*reads[release.package], *_metadata(release.holder)])
            except KvpatchError:
                return False
        return True

    told: set[Release] = set()
    fetched = {release: Future[bool]() for release in remote}
    waiting = deque(remote)

    def work() -> None:
        with contextlib.suppress(IndexError):
            while waiting:
                release = waiting.popleft()
                _settle(fetched[release], partial(fetch, release))

    def ready(release: Release) -> bool:
        if release not in fetched:
            return True
        sound = fetched[release].result()
        if release not in told:
            told.add(release)
            if len(told) % 10 == 0:
                say(f"read {len(told)} of {count} wheels")
        return sound

    if not _start(work, min(jobs, count)):
        work()
    try:
        yield ready
    finally:
        # Nobody waits for an index that doesn't answer, least of all one who pressed Ctrl-C.
        waiting.clear()
        for future in fetched.values():
            with contextlib.suppress(InvalidStateError):
                future.set_exception(_ended())


def _start(work: Callable[[], None], count: int) -> int:
    """Have so many threads do it, or as many as there can be; they end with the process."""
    started = 0
    with contextlib.suppress(RuntimeError):
        while started < count:
            threading.Thread(target=work, daemon=True).start()
            started += 1
    return started


def _settle(future: Future[bool], find: Callable[[], bool]) -> None:
    """Put into a future what ``find`` gives or raises, unless it has something already."""
    try:
        found = find()
    except Exception as error:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            future.set_result(found)


def _ended() -> KvpatchError:
    return KvpatchError(
        "interrupted", "reading ahead has ended", "run it again", ExitCode.ENVIRONMENT
    )


def _metadata(wheel: RemoteWheel) -> list[str]:
    """Its path has the version in it, so that no other release tells it."""
    return [path for path in wheel.entries if path.endswith(".dist-info/METADATA")]
