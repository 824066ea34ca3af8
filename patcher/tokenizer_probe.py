"""Splits a prompt by the separator as LMCache does, with the model's own tokenizer.

Stands alone: run by the target interpreter as a script with the model's folder, the separator, and
``whole`` where LMCache is patched to take the separator whole, else ``cut``. Prints one line of
JSON: the separator's tokens, what LMCache keeps of them, and how many segments it wants, finds, and
finds inside of documents; and one that text keeps, where that one is lost in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Encode = Callable[[str, bool], "list[int]"]

DOCUMENTS = (
    "The river rises in the hills # and runs north.",
    "A second text, with numbers: 1 # 2, and a line.\n\nAnd another line.",
    "The third one ends here.",
)
STARTS = ("# A heading", "(a note)", "- an item", '"quoted"', "1 and more")
"""What the separator may become one token with, where documents begin so."""
FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "spiece*", "merges.txt")
"""Names of files that tokenizers are loaded from."""
_LONGEST = 300
QUESTION = "Which of them has numbers?"


def places(tokens: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Where one list of tokens stands in another."""
    size = len(wanted)
    return [at for at in range(len(tokens) - size + 1) if size and tokens[at : at + size] == wanted]


def apart(found: Sequence[int], size: int) -> list[int]:
    """The places that don't overlap the one before."""
    kept: list[int] = []
    for at in found:
        if not kept or at >= kept[-1] + size:
            kept.append(at)
    return kept


def look(encode: Encode, separator: str, *, whole: bool) -> dict[str, Any]:
    """What comes of it; with ``better``, one that text keeps where this one is lost in it.

    Args:
        encode: text and whether special tokens are added, to token ids.
        separator: the text between documents.
        whole: whether LMCache encodes the separator without special tokens, and passes over
            matches that overlap, as it does once it is patched.
    """
    facts = _counted(encode, separator, DOCUMENTS, whole=whole)
    better = separator.rstrip() + "\n"
    if facts["found_in_text"] < facts["wanted"] and better != separator:
        other = _counted(encode, better, (*DOCUMENTS, *STARTS), whole=whole)
        found = {other["wanted"], other["found"], other["found_in_text"]}
        if len(found) == 1 and not other["spurious"] and not other["loses_first"]:
            facts["better"] = better
    return facts


def _counted(
    encode: Encode, separator: str, documents: Sequence[str], *, whole: bool
) -> dict[str, Any]:
    plain = encode(separator, False)
    kept = plain if whole else encode(separator, True)[1:]

    def count(tokens: Sequence[int]) -> int:
        found = places(tokens, kept)
        return len(apart(found, len(kept)) if whole else found)

    parts = [encode(text, False) for text in documents]
    joined: list[int] = []
    for part in parts:
        joined += part + plain
    joined += encode(QUESTION, False)
    spurious = sum(map(count, [*parts, encode(QUESTION, False)]))
    as_text = encode("".join(text + separator for text in documents) + QUESTION, False)
    return {
        "tokens": plain,
        "kept": kept,
        "loses_first": kept != plain,
        "wanted": len(documents) + 1,
        "found": count(joined) + 1 if kept else 0,
        "found_in_text": count(as_text) + 1 if kept else 0,
        "spurious": spurious,
    }


class NoFilesError(Exception):
    """There is nothing that a tokenizer could be loaded from."""


def encoder(folder: str) -> Encode:
    """How the model's tokenizer encodes.

    Raises:
        NoFilesError: the folder has no files for one, of which transformers makes an empty one.
        Exception: whatever loading it raises.
    """
    file = Path(folder, "tokenizer.json")
    if _none_there(Path(folder)):
        raise NoFilesError(f"there are no tokenizer files in {folder}")
    encode = _loaded(folder, file)
    if not any(encode(text, False) for text in DOCUMENTS):
        raise NoFilesError(f"the tokenizer in {folder} has no words: its vocabulary is not there")
    return encode


def _none_there(folder: Path) -> bool:
    return folder.is_dir() and not any(one for name in FILES for one in folder.glob(name))


def _loaded(folder: str, file: Path) -> Encode:
    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return lambda text, special: list(loaded.encode(text, add_special_tokens=special))
    except Exception:
        if not file.is_file():
            raise
        from tokenizers import Tokenizer

        plain = Tokenizer.from_file(str(file))
        return lambda text, special: list(plain.encode(text, add_special_tokens=special).ids)


def problem(error: Exception) -> dict[str, str]:
    """Why a tokenizer can't be loaded, on one line, and what it is that lacks."""
    if isinstance(error, ImportError):
        return {"problem": _line(error), "lacks": "module"}
    if isinstance(error, NoFilesError):
        return {"problem": _line(error), "lacks": "files"}
    return {"problem": _line(error), "lacks": ""}


def _line(error: Exception) -> str:
    """All of a message on one line, cut between words where it is long."""
    told = " ".join(str(error).split()) or type(error).__name__
    return told if len(told) <= _LONGEST else told[:_LONGEST].rpartition(" ")[0] + " ..."


if __name__ == "__main__":
    try:
        print(json.dumps(look(encoder(sys.argv[1]), sys.argv[2], whole=sys.argv[3] == "whole")))
    except Exception as error:
        print(json.dumps(problem(error)))
