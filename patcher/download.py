"""One whole wheel from the package index: the one for this interpreter, with its hash checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import Tag, sys_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from . import body
from .connection import TIMEOUT_S, connection, missing_extra, no_network
from .index import Wheel, configured, wheels_of
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    from .installer import Say

MOST = 8 * 1024**3
_STEPS = 10


def choose(
    distribution: str, version: Version, wheels: Sequence[Wheel], tags: Sequence[Tag]
) -> Wheel:
    """The wheel that pip would take of a release's: the first of the interpreter's tags decides.

    Of several that are as good it is the first.

    Raises:
        KvpatchError: ``no-such-release`` or ``no-fitting-wheel``, exit 4.
    """
    if not wheels:
        raise KvpatchError(
            "no-such-release",
            f"the package index has no wheel of {distribution} {version}",
            "check the version and --distribution, or give the path of a wheel",
            ExitCode.ENVIRONMENT,
        )
    ranks = {tag: rank for rank, tag in enumerate(tags)}
    fitting = []
    for wheel in wheels:
        _, _, build, own = parse_wheel_filename(wheel.filename)
        if found := [ranks[tag] for tag in own if tag in ranks]:
            newest = tuple(-part if isinstance(part, int) else 0 for part in build)
            fitting.append((wheel.yanked, min(found), newest, wheel))
    if not fitting:
        raise KvpatchError(
            "no-fitting-wheel",
            f"none of the {len(wheels)} wheels of {distribution} {version} is for this Python "
            f"({tags[0]}): there is {wheels[0].filename}",
            "run kvpatch with the Python of the target, or fetch the wheel and give its path",
            ExitCode.ENVIRONMENT,
        )
    return min(fitting, key=lambda item: item[:-1])[-1]


def download(distribution: str, version: Version, folder: Path, say: Say) -> tuple[Path, bool]:
    """Fetch the wheel of a release into the folder; and whether that release is yanked.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``no-such-release``,
            ``no-fitting-wheel``, ``no-hash``, ``wrong-hash``, ``no-validate-extra``; exit 4.
        OSError: the folder can't be written.
    """
    wheel = choose(distribution, version, wheels_of(distribution, version), list(sys_tags()))
    return fetch(wheel, folder, say), wheel.yanked


def fetch(wheel: Wheel, folder: Path, say: Say) -> Path:
    """The wheel's file in the folder, whole and with the hash that the index says.

    One of find-links that is on this disk need have none.

    Raises:
        KvpatchError: as :func:`download`.
        OSError: the folder can't be written.
    """
    try:
        import requests
        from urllib3.exceptions import HTTPError
    except ImportError:
        raise missing_extra() from None
    if wheel.sha256 is None and wheel.path is None:
        raise KvpatchError(
            "no-hash",
            f"the package index gives no sha256 of {wheel.filename}",
            "fetch the wheel in a way that you trust, and give its path",
            ExitCode.ENVIRONMENT,
        )
    target = folder / Path(wheel.filename).name
    most = MOST if wheel.size is None else wheel.size
    digest, got, told = hashlib.sha256(), 0, 0
    with connection(configured()) as session, target.open("xb") as file:
        try:
            with session.get(
                wheel.url,
                stream=True,
                timeout=TIMEOUT_S,
                headers={"Accept-Encoding": "identity"},
            ) as answer:
                answer.raise_for_status()
                for piece in body.pieces(answer.raw, most):
                    got += len(piece)
                    digest.update(piece)
                    file.write(piece)
                    step = got * _STEPS // max(most, 1)
                    if wheel.size and step > told:
                        told = step
                        say(f"{wheel.filename}: {got >> 20} of {most >> 20} MiB")
        except body.TooLongError:
            got = most + 1
        except (requests.RequestException, HTTPError, TimeoutError) as error:
            raise no_network(wheel.filename, error) from None
    if got > most or (wheel.sha256 is not None and digest.hexdigest() != wheel.sha256):
        raise KvpatchError(
            "wrong-hash",
            f"what was fetched as {wheel.filename} is not what the package index says "
            f"({got} bytes, sha256 {digest.hexdigest()})",
            "try again; if it stays so, something between here and the index changes files",
            ExitCode.ENVIRONMENT,
        )
    return target
