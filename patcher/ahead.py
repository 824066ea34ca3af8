"""Fetches ahead what the releases of a validate run need, several at once, while it plans."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from .matrix import Release, Say, Workshop
from .outcome import KvpatchError
from .remote import RemoteWheel
from .tree import PACKAGES

_SAMPLE = (1.0, 0.0, 0.5)
"""Which releases tell what the others need: where they stand from the oldest to the newest."""


@contextlib.contextmanager
def fetching(
    found: Sequence[Release], workshop: Workshop, jobs: int, say: Say
) -> Iterator[Callable[[Release], None]]:
    """Fetch ahead what some releases turned out to need; gives what waits for one of them."""
    remote = {
        name: [r for r in found if r.package == name and isinstance(r.holder, RemoteWheel)]
        for name in PACKAGES
    }
    count = sum(map(len, remote.values()))
    if not count:
        yield lambda _: None
        return
    say(f"reading {count} wheels by ranges")
    wanted = _wanted(remote, workshop)

    def fetch(release: Release) -> None:
        # What fails here fails again where it is read in earnest, and is reported there.
        if isinstance(release.holder, RemoteWheel):
            with contextlib.suppress(KvpatchError):
                release.holder.prefetch([*wanted[release.package], *_metadata(release.holder)])

    with ThreadPoolExecutor(jobs) as pool:
        waiting = {r: pool.submit(fetch, r) for name in PACKAGES for r in remote[name]}

        def ready(release: Release) -> None:
            future = waiting.pop(release, None)
            if future is not None:
                future.result()
                if (number := count - len(waiting)) % 10 == 0:
                    say(f"read {number} of {count} wheels")

        try:
            yield ready
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _wanted(
    remote: Mapping[str, Sequence[Release]], workshop: Workshop
) -> Mapping[str, Mapping[str, None]]:
    """The paths that a few pairs need, from the newest to the oldest, by package."""
    wanted: dict[str, dict[str, None]] = {name: {} for name in PACKAGES}
    for part in _SAMPLE:
        pair = {name: side[int((len(side) - 1) * part)] for name, side in remote.items() if side}
        for name, release in pair.items():
            if not isinstance(release.holder, RemoteWheel):
                continue
            # What fails here fails again where it is read in earnest, and is reported there.
            with contextlib.suppress(KvpatchError):
                if not wanted[name] and name == "lmcache":
                    # Two hundred of its files are needed, one after the other.
                    every = [path for path in release.holder.entries if path.endswith(".py")]
                    release.holder.prefetch(every)
                release.holder.prefetch([*wanted[name], *_metadata(release.holder)])
        with contextlib.suppress(KvpatchError):
            if len(pair) == len(PACKAGES):
                workshop.pair(pair["vllm"], pair["lmcache"])
            for name, release in pair.items():
                workshop.row(release, pair.get(PACKAGES[1 - PACKAGES.index(name)]))
        for name, release in pair.items():
            if isinstance(release.holder, RemoteWheel):
                wanted[name].update(dict.fromkeys(release.holder.read_paths))
    return wanted


def _metadata(wheel: RemoteWheel) -> list[str]:
    """Its path has the version in it, so that no other release tells it."""
    return [path for path in wheel.entries if path.endswith(".dist-info/METADATA")]
