"""Where what a shell has opened by a bracket or a quote is closed again."""

from __future__ import annotations

UNCLOSED = "No closing quotation"


def closing(text: str, at: int, opening: str, ending: str) -> int:
    """The place behind the bracket that closes one that was opened before ``at``.

    Raises:
        ValueError: there is none.
    """
    depth = 1
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif letter in "'`":
            at = found_at(text, letter, at + 1)
        elif letter == '"':
            at = _quote_end(text, at + 1)
        elif letter == opening:
            depth += 1
        elif letter == ending:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise ValueError(UNCLOSED)


def _quote_end(text: str, at: int) -> int:
    """The double quote that ends what is open at a place; commands in it have quotes of their own.

    A flat scan keeps count of the commands that are open, so depth costs no stack.
    """
    open_commands: list[bool] = []
    inside = True
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif inside and text.startswith("$(", at):
            open_commands.append(True)
            inside = False
            at += 1
        elif letter == '"':
            if inside and not open_commands:
                return at
            inside = not inside
        elif letter == "(" and not inside:
            open_commands.append(False)
        elif letter == ")" and not inside and open_commands:
            inside = open_commands.pop()
        at += 1
    raise ValueError(UNCLOSED)


def found_at(text: str, what: str, at: int) -> int:
    """The place of a text behind another one.

    Raises:
        ValueError: it is not there.
    """
    found = text.find(what, at)
    if found < 0:
        raise ValueError(UNCLOSED)
    return found
