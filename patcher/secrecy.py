"""Values as they may be printed: with no login, password, token or key of an account in them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from .schema import EXTRA
from .spelling import spelt

HIDDEN = "***"

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"]*@")
"""The login in a URL, up to the last @: a password may hold one, or a slash, unescaped."""
_WHOLE = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*://)?(?=.*@)", re.DOTALL)
_LOGIN = re.compile(r"\s*[^\s/@:]*:.*@", re.DOTALL)
"""A name and a password in front of an @, with no scheme before them."""
_PLACES = re.compile(r"(?:^|_)(?:ur[il]s?|hosts?|endpoints?|address(?:es)?|servers?|nodes?)$")
_QUERY = re.compile(r"(?<=[?&;#])([^?&;=\s'\"]+)=([^?&;\s'\"]*)")
_WORDS = frozenset(
    {"pass", "passwd", "password", "passwords", "passphrase", "passcode", "pwd", "pw", "pem"}
    | {"secret", "secrets", "credential", "credentials", "cred", "creds", "token", "jwt", "sas"}
    | {"auth", "authorization", "authentication", "login", "user", "username", "bearer", "cookie"}
    | {"dsn", "signature", "sig", "hmac"}
)
_INSIDE = re.compile(
    r"passw|secret|credential|apikey|accesskey|privatekey|accountkey|keyid|accessid|authtoken"
)
_NUMBERS = re.compile(r"pass|pwd|secret|pin$|credential")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def is_secret(name: str) -> bool:
    """Whether what stands under a name is a login, or a part of one."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    last = parts[-1] if parts else ""
    # Tokens are a prompt's, and keys that are not of an account are those of chunks.
    return (
        bool(_WORDS & set(parts))
        or last == "key"
        or ("key" in parts and last == "id")
        or _INSIDE.search("".join(parts)) is not None
    )


def masked(value: Any, name: str = "", known: Collection[str] = ()) -> Any:
    """A value of a key without what may be a login.

    Args:
        value: as YAML or JSON has it.
        name: its key; empty for none.
        known: names inside ``extra_config`` that LMCache itself reads. What else is there is for
            others, and of it no text is shown.
    """
    if name.endswith(EXTRA):
        return _inside(_object(value), known)
    if isinstance(value, bool) or value is None:
        return value
    if is_secret(name):
        plain = isinstance(value, int | float) and not _NUMBERS.search(name.lower())
        return value if plain else HIDDEN
    if isinstance(value, dict):
        return _inside(value, known)
    if isinstance(value, list | tuple):
        return [masked(one, name, known) for one in value]
    if not isinstance(value, str):
        return value
    whole = "://" in value or _PLACES.search(name.lower()) or _LOGIN.match(value)
    if whole and (found := _WHOLE.match(value)):
        value = f"{found[0]}{HIDDEN}@{value.rpartition('@')[2]}"
    return without_logins(value)


def without_logins(text: str) -> str:
    """A text of somebody else's, a message or so, with no login in the URLs that it names."""
    text = _ADDRESS.sub(rf"\g<1>{HIDDEN}@", text)
    return _QUERY.sub(lambda one: f"{one[1]}={HIDDEN}" if is_secret(one[1]) else one[0], text)


def shown(name: str, value: Any, known: Collection[str] = ()) -> str:
    """A key's value as YAML has it, shortened, for a message."""
    return spelt(masked(value, name, known))


def _object(value: Any) -> Any:
    """An object that was written as a text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, dict) else value


def _inside(value: Any, known: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {
            key: masked(one, str(key), known) if str(key) in known else _of_others(one, str(key))
            for key, one in value.items()
        }
    return _of_others(value, "")


def _of_others(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _of_others(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        hidden = is_secret(name)
        return HIDDEN if hidden else [_of_others(one, name) for one in value]
    if isinstance(value, bool | int | float) or value is None:
        return masked(value, name)
    return HIDDEN if value else value
