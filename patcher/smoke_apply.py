"""``kvpatch apply --smoke``: put the patches in, prove them by running, or take them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import smoke, verbs
from .fsops import Disk
from .host import Choice, Where
from .outcome import ExitCode, KvpatchError, Report


def apply(
    where: Where,
    choice: Choice,
    proof: smoke.Choice,
    disk: Disk,
    say: Callable[[str], None],
    *,
    while_running: bool = False,
) -> Report:
    """Apply, smoke, and revert where the smoke fails (exit 1) or can't be run (exit 4).

    What an earlier run had put in is left in place; the report says which it was.

    Raises:
        KvpatchError: it is known before anything is written that no smoke can be run there.
    """
    smoke.runnable(where, proof, disk)
    applied = verbs.apply(where, choice, disk, dry_run=False, while_running=while_running)
    if applied.exit_code is not ExitCode.DONE:
        return applied
    try:
        proved = smoke.smoke(where, proof, disk, say)
    except KvpatchError as error:
        return _refused(where, disk, applied, error)
    except BaseException:
        _back(where, disk, applied)
        raise
    data = {**applied.data, "smoke": proved.data}
    if proved.exit_code is ExitCode.DONE:
        return replace(applied, text=f"{applied.text}\n\n{proved.text}", data=data)
    undone = _back(where, disk, applied)
    data["reverted"] = undone is not None
    return Report(
        "apply",
        f"{proved.text}\n\n{_told(undone)}",
        data,
        ExitCode.NO,
        (*proved.errors, _failed(undone)),
    )


def _refused(where: Where, disk: Disk, applied: Report, error: KvpatchError) -> Report:
    undone = _back(where, disk, applied)
    data = {**applied.data, "smoke": None, "reverted": undone is not None}
    errors = (error, _failed(undone, "The smoke could not be run"))
    return Report("apply", _told(undone), data, ExitCode.ENVIRONMENT, errors)


def _back(where: Where, disk: Disk, applied: Report) -> Report | None:
    """The revert, if this run wrote anything."""
    if not applied.data.get("written"):
        return None
    return verbs.revert(where, disk, dry_run=False, force=False, while_running=True)


def _told(undone: Report | None) -> str:
    if undone is None:
        return "nothing was reverted: an earlier run had put the patches in"
    return undone.text


def _failed(undone: Report | None, what: str = "The smoke failed") -> KvpatchError:
    if undone is None:
        return KvpatchError(
            "not-proved",
            f"{what}; the patches of an earlier run are still in place",
            "run `kvpatch revert` to take them back",
            ExitCode.NO,
        )
    return KvpatchError(
        "not-proved",
        f"{what}; the patches were taken back",
        "`kvpatch apply` without --smoke puts them in unproved",
        ExitCode.NO,
    )
