"""What a file has beside bytes, mode and owner: access control lists, and what others noted on it.

A file that takes another's place is to have the same. Not the marks of its bytes, which
``security.ima`` and ``security.evm`` sign (Linux, ``Documentation/ABI/testing/ima_policy``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

ACCESS_LIST = "system.posix_acl_access"
LABEL = "security.selinux"

_ABSENT = (errno.ENOTSUP, errno.ENODATA, errno.ENOSYS)


def attributes_of(file: Path | int) -> dict[str, bytes]:
    """Name to value of those that a new file of other bytes is to have, too.

    Args:
        file: a path, whose links are followed, or a descriptor.
    """
    if not hasattr(os, "listxattr"):  # not on macOS
        return {}
    found = {}
    try:
        for name in os.listxattr(file):
            if name in (ACCESS_LIST, LABEL) or name.startswith("user."):
                found[name] = os.getxattr(file, name)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
    return found


def surplus(descriptor: int, wanted: Mapping[str, bytes]) -> list[str]:
    """The names that a new file came to have from its folder and is not to have."""
    return [name for name in attributes_of(descriptor) if name not in wanted and name != LABEL]


def give(descriptor: int, wanted: Mapping[str, bytes]) -> None:
    """Let a new file have these. A label that the policy does not let be given is left as it is.

    Raises:
        OSError: where another can't be given.
    """
    there = attributes_of(descriptor)
    for name, value in wanted.items():
        if there.get(name) == value:
            continue
        try:
            os.setxattr(descriptor, name, value)
        except OSError as error:
            if name != LABEL or error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP):
                raise
