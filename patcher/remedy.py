"""What ``kvpatch apply`` would do to an environment, for a hint to say before anybody runs it."""

from __future__ import annotations

from dataclasses import dataclass

from . import application, verbs
from .fsops import Disk
from .host import Choice, Where, open_host
from .outcome import KvpatchError


@dataclass(frozen=True)
class Remedy:
    """What to do as a sentence without its full stop.

    ``pending`` is true where apply would go through and change something. ``settled`` is true
    where nothing is left to do and nothing stands in the way, as far as the files show.
    """

    sentence: str
    pending: bool = False
    settled: bool = False


RUN = "run `kvpatch apply`"
_SETTLED = (
    "`kvpatch apply` has nothing to do here, for the files are as they should be: what runs is "
    "something else, such as a hook in a .pth file, another copy of the package or old bytecode"
)


def remedy(where: Where, disk: Disk) -> Remedy:
    """What apply would do there; nothing is written."""
    try:
        host = open_host(where, disk)
        done = application.apply(host, Choice(), disk, while_running=True, dry_run=True)
        refusal = done.refusal
        if refusal is None and done.view.plan.changes:
            return Remedy(RUN, pending=True)
        if refusal is None:
            left = verbs.verify(where, Choice(), disk).errors
            if not left:
                return Remedy(_SETTLED, settled=True)
            told = "`kvpatch apply` has nothing to do here, and `kvpatch verify` says"
            return Remedy(f"{told}: {left[0].message}; {left[0].hint}")
    except KvpatchError as error:
        refusal = error
    return Remedy(f"`kvpatch apply` refuses here: {refusal.message}; {refusal.hint}")
