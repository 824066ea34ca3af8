"""What patches say of a text: it is parsed, and their post-conditions are asked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from packaging.version import Version

from .patch import Judgement, Patch
from .syntax import syntax_tree

Parsed = ast.Module | str
"""A parsed text, or a sentence why it does not parse."""


def parsed(content: bytes) -> Parsed:
    """The text's syntax tree, or why there is none."""
    try:
        return syntax_tree(content)
    except SyntaxError as error:
        return str(error)


def judge(text: Parsed, release: Version, patches: Sequence[Patch]) -> Mapping[str, Judgement]:
    """Whether the text of that release does the work of each patch, by the patch's id."""
    if isinstance(text, str):
        failed = Judgement(False, f"the file does not parse: {text}")
        return {patch.id: failed for patch in patches}
    # Patches that work towards one goal share its post-condition: judge once.
    conditions = {patch.post_condition for patch in patches}
    verdicts = {condition: asked(partial(condition, text, release)) for condition in conditions}
    return {patch.id: verdicts[patch.post_condition] for patch in patches}


def asked(question: Callable[[], Judgement]) -> Judgement:
    """The answer; a text that is too deep to follow does not hold."""
    try:
        return question()
    except RecursionError:
        return Judgement(False, "an expression in the file is too deep to follow")
