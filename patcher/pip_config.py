"""What pip's own files and variables say, in pip's order: of two that say something the later."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Of the options that count for pip install, those of the later section rule.
_SECTIONS = ("global", "install")
_YES = ("y", "yes", "t", "true", "on", "1")


@dataclass(frozen=True)
class PipConfig:
    """Values by option and section, as the files leave them together; and those of variables.

    ``broken`` says that pip refuses one of the files, and does not start.
    """

    files: Mapping[str, Mapping[str, str]]
    variables: Mapping[str, str]
    broken: bool = False

    def value(self, option: str) -> str:
        """What pip is given for an option; empty where that is nothing.

        An empty value hides those of earlier files; the other section and variables count still.
        """
        if told := self.variables.get(option):
            return told.strip()
        values = [self.files[section].get(option, "") for section in _SECTIONS]
        return next(filter(None, reversed(values)), "")

    def flag(self, option: str) -> bool:
        """Whether an option without a value is given. With a value that is neither pip stops."""
        return self.value(option).lower() in _YES

    def values(self, option: str) -> list[str]:
        """The same of an option that may have many."""
        return self.value(option).split()


def read(environ: Mapping[str, str]) -> PipConfig:
    """What pip's files and variables say. Files that pip refuses say nothing.

    Source: pip's ``Configuration`` and ``ConfigOptionParser``.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    broken = False
    for path in files(environ):
        parser = _Parser()
        try:
            parser.read_string(path.read_text("utf-8"))
        except OSError:
            continue
        except (UnicodeDecodeError, configparser.Error):
            broken = True
            continue
        for section in _SECTIONS:
            if parser.has_section(section):
                found[section].update(parser.items(section))
    # pip takes its variables in any case.
    variables = {
        _option(name.removeprefix("PIP_")): value
        for name, value in environ.items()
        if name.startswith("PIP_")
    }
    return PipConfig(found, variables, broken)


def files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the one that rules last."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    shared = _absolute((environ.get("XDG_CONFIG_DIRS") or "").split(os.pathsep)) or ["/etc/xdg"]
    found = [Path(folder) / "pip" / "pip.conf" for folder in shared]
    found.append(Path("/etc/pip.conf"))
    # Unlike Path.exists, it fails for no folder that can't be entered.
    if not (named and os.access(named, os.F_OK)):
        (config,) = _absolute([environ.get("XDG_CONFIG_HOME") or ""]) or [str(home / ".config")]
        found += [home / ".pip" / "pip.conf", Path(config) / "pip" / "pip.conf"]
    found.append(Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf")
    if named:
        found.append(Path(named))
    # A file that comes twice rules where it comes first.
    return [*dict.fromkeys(found)]


class _Parser(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return _option(optionstr)


def _option(name: str) -> str:
    """An option by its one name: pip takes ``trusted_host`` and ``--trusted-host`` as well."""
    return name.lower().replace("_", "-").removeprefix("--")


def _absolute(folders: list[str]) -> list[str]:
    return [folder.strip() for folder in folders if Path(folder.strip()).is_absolute()]
