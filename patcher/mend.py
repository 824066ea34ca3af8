"""Certain fixes put into a YAML text, with its comments, its order and its quotes kept."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .outcome import ExitCode, KvpatchError
from .rules import Finding, Fix
from .schema import EXTRA
from .yaml_source import YamlFile, parse_yaml

_ROUNDS = 8
_WIDTH = 2**20


def mended(
    file: YamlFile, check: Callable[[YamlFile], Sequence[Finding]]
) -> tuple[YamlFile, tuple[Fix, ...]]:
    """The file with every certain fix in, and the fixes in the order in which they went in.

    A fix can bring another to light (a renamed key with a wrong value), so this goes on until
    nothing certain is left. What the fixes are not about reads the same as before.

    Raises:
        KvpatchError: ``not-mended`` (exit 3): the text can't be changed without changing more, or
            a key is there twice.
    """
    done: list[Fix] = []
    for _ in range(_ROUNDS):
        found = check(file)
        fixes = _together([one.fix for one in found if one.fix is not None])
        if not fixes:
            return file, tuple(done)
        if file.problems:
            raise _doubled(file)
        text = _rewritten(file.text, fixes)
        after = parse_yaml(text, file.path)
        if after.problems or after.values != _expected(file, fixes):
            raise _not_mended(file.path, "the YAML library would change more than that")
        file = after
        done += fixes
    raise _not_mended(file.path, "each fix asks for another")


def write_over(path: Path, text: str) -> None:
    """Put a text in the place of a file: whole or not at all, with its mode, owner and attributes.

    Raises:
        KvpatchError: ``not-written``, exit 4; the file is as it was.
    """
    target = path.resolve()
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            found = target.stat()
            shutil.copystat(target, name)
            os.utime(name)
            if (os.geteuid(), os.getegid()) != (found.st_uid, found.st_gid):
                os.chown(name, found.st_uid, found.st_gid)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KvpatchError(
            "not-written",
            f"{path} can't be written: {error.strerror}; it is as it was",
            "run it as the owner of the file, or lint a copy",
            ExitCode.ENVIRONMENT,
        ) from None


def _together(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """The fixes that can go in at once: one a key, and one a new name; a rename before others.

    What was written by the user is kept that way where another fix would write the same key.
    """
    chosen: list[Fix] = []
    touched: set[str] = set()
    for fix in sorted(fixes, key=lambda one: one.kind != "rename"):
        names = {fix.key, fix.name} - {""}
        if not names & touched:
            chosen.append(fix)
            touched |= names
    return tuple(chosen)


def _rewritten(text: str, fixes: Sequence[Fix]) -> str:
    from ruamel.yaml.error import YAMLError

    yaml = _round_trip()
    mark, body = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    ending = "\r\n" if "\r\n" in body else "\n"
    mapping, sequence, offset = _indents(body)
    yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
    yaml.explicit_start = body.lstrip().startswith("---")
    try:
        document = yaml.load(body)
        if document is None:
            document = yaml.map()
        for fix in fixes:
            _apply(document, fix)
        stream = io.StringIO()
        yaml.dump(document, stream)
    except (YAMLError, ValueError, NotImplementedError) as error:
        raise _not_mended("the file", str(error).splitlines()[0]) from None
    made = stream.getvalue()
    if ending != "\n":
        made = made.replace("\r\n", "\n").replace("\n", ending)
    return mark + made


class _AsWritten(str):
    """A truth value or a null in the words that it was written in."""

    __slots__ = ()


def _round_trip() -> Any:
    """A YAML library that changes nothing it is not told to, capitals in ``True`` included."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import RoundTripConstructor
    from ruamel.yaml.representer import RoundTripRepresenter

    class Constructor(RoundTripConstructor):
        """Reads words as they are."""

    class Representer(RoundTripRepresenter):
        """Writes them so."""

    for kind in ("bool", "null"):
        tag = f"tag:yaml.org,2002:{kind}"
        Constructor.add_constructor(tag, lambda _, node: _AsWritten(node.value))
    Representer.add_representer(
        _AsWritten,
        # Plain, whatever the resolver would make of it.
        lambda self, data: self.represent_scalar(_tag(data), str(data)),
    )
    Representer.add_representer(
        type(None), lambda self, _: self.represent_scalar(_tag("null"), "null")
    )
    yaml = YAML(typ="rt")
    yaml.Constructor = Constructor
    yaml.Representer = Representer
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    return yaml


def _tag(text: str) -> str:
    is_null = text.lower() in ("", "~", "null")
    return f"tag:yaml.org,2002:{'null' if is_null else 'bool'}"


def _indents(text: str) -> tuple[int, int, int]:
    """How the text indents: mappings, sequences, and the dash in a sequence."""
    mapping, sequence, offset = 2, 2, 0
    before = ""
    for line in text.splitlines():
        plain = line.lstrip(" ")
        if not plain or plain.startswith("#"):
            continue
        depth = len(line) - len(plain)
        if before.rstrip().endswith(":") and not before.startswith(" "):
            if plain.startswith("- "):
                offset, sequence = depth, depth + 2
            elif depth:
                mapping = depth
        before = line
    return mapping, sequence, offset


def _apply(document: Any, fix: Fix) -> None:
    if fix.kind == "set":
        owner, name = _owner(document, fix.key)
        owner[name] = _node(fix.value)
        if fix.comment:
            _cut_comment(owner, name, fix.comment)
        return
    owner, name = _owner(document, fix.key)
    value = _node(fix.value) if fix.changes_value else owner[name]
    into, new = _owner(document, fix.name)
    if into is owner:
        place = list(owner).index(name)
        comment = owner.ca.items.pop(name, None)
        del owner[name]
        owner.insert(place, new, value)
        if comment is not None:
            owner.ca.items[new] = comment
        return
    comment = _taken_out(owner, name)
    into[new] = value
    if comment:
        into.yaml_add_eol_comment(comment, new)
    if owner is document.get(EXTRA) and not owner:
        _taken_out(document, EXTRA)


def _owner(document: Any, key: str) -> tuple[Any, str]:
    outer, dot, inner = key.partition(".")
    if not dot:
        return document, outer
    if not isinstance(document.get(outer), dict):
        from ruamel.yaml.comments import CommentedMap

        document[outer] = CommentedMap()
    return document[outer], inner


def _cut_comment(owner: Any, name: str, text: str) -> None:
    """Take a text from the front of the comment beside a key; what follows it stays."""
    slots = owner.ca.items.get(name)
    token = slots[2] if slots and len(slots) > 2 else None
    if token is None or not token.value.lstrip().startswith(text):
        return
    first, newline, below = token.value.lstrip().partition("\n")
    beside = first.removeprefix(text).strip()
    token.value = beside + newline + below
    if token.value in ("", "\n"):
        slots[2] = None


def _taken_out(owner: Any, name: str) -> str:
    """Remove a key; its comment on the same line comes back, those below it stay where they are."""
    slots = owner.ca.items.pop(name, None)
    place = list(owner).index(name)
    del owner[name]
    token = slots[2] if slots and len(slots) > 2 else None
    if token is None:
        return ""
    first, newline, rest = token.value.partition("\n")
    if newline and rest.strip():
        _kept_below(owner, place, rest)
    return str(first).strip().removeprefix("#").strip()


def _kept_below(owner: Any, place: int, text: str) -> None:
    """Leave comment lines where they stand: below the key before them, or above the first."""
    names = list(owner)
    if place == 0 or not names:
        if names:
            words = "\n".join(line.strip().removeprefix("#").strip() for line in text.splitlines())
            owner.yaml_set_comment_before_after_key(names[0], words.strip("\n"), indent=2)
        return
    slots = owner.ca.items.setdefault(names[place - 1], [None, None, None, None])
    if slots[2] is None:
        from ruamel.yaml.error import CommentMark
        from ruamel.yaml.tokens import CommentToken

        slots[2] = CommentToken(f"\n{text}", CommentMark(0), None)
    else:
        slots[2].value += text


def _node(value: Any) -> Any:
    """A value as it is written: strings quoted, lists on one line."""
    from ruamel.yaml.comments import CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, str) and not value.isidentifier():
        return DoubleQuotedScalarString(value)
    if isinstance(value, list):
        made = CommentedSeq([_node(one) for one in value])
        made.fa.set_flow_style()
        return made
    return value


def _expected(file: YamlFile, fixes: Sequence[Fix]) -> dict[Any, Any]:
    """What the text has to read as once the fixes are in."""
    values = {
        name: dict(value) if name == EXTRA and isinstance(value, dict) else value
        for name, value in file.values.items()
    }
    for fix in fixes:
        outer, _, inner = fix.key.partition(".")
        owner = values[outer] if inner else values
        name = inner or outer
        if fix.kind == "set":
            owner[name] = fix.value
            continue
        value = owner.pop(name)
        value = fix.value if fix.changes_value else value
        new_outer, _, new_inner = fix.name.partition(".")
        if new_inner:
            if not isinstance(values.get(new_outer), dict):
                values[new_outer] = {}
            values[new_outer][new_inner] = value
        else:
            values[new_outer] = value
        if values.get(EXTRA) == {} and owner is values.get(EXTRA):
            del values[EXTRA]
    return values


def _doubled(file: YamlFile) -> KvpatchError:
    """Why a file with equal keys can't be changed, and what to do first."""
    places = ", ".join(str(problem.line) for problem in file.problems)
    return _not_mended(
        file.path,
        f"a key is there twice (line {places}), and which one is meant is not known",
        "take out the line that is not meant, then run it again",
    )


def _not_mended(
    what: str,
    why: str,
    hint: str = "put the fixes in by hand; `kvpatch lint` without --fix lists them",
) -> KvpatchError:
    return KvpatchError("not-mended", f"{what} was left as it is: {why}", hint)
