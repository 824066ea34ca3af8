"""The functions of a release's configuration code, and what they tell of how values are taken."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .purecode import bare
from .schema import Reading
from .schema_code import UNQUOTE, VALIDATE

CLASS = "LMCacheEngineConfig"
SETTER = "validate_and_set_config_value"


class Functions:
    """The functions of a release's configuration code, those of its class among them."""

    def __init__(self, module: ast.Module, base: ast.Module) -> None:
        methods = [
            one
            for node in module.body
            if isinstance(node, ast.ClassDef) and node.name == CLASS
            for one in node.body
        ]
        self.class_based = bool(methods)
        self.own = module.body
        self.all = ast.Module([*base.body, *module.body, *methods], [])
        self.named = {one.name: one for one in self.all.body if isinstance(one, ast.FunctionDef)}
        self.base = {one.name: one for one in ast.walk(base) if isinstance(one, ast.FunctionDef)}
        self.inner = {
            node.name: node for node in ast.walk(self.all) if isinstance(node, ast.FunctionDef)
        }

    def code(self, expressions: Iterable[str]) -> str:
        """The source of the functions that those expressions and a start of LMCache call."""
        left = [VALIDATE, "validate", UNQUOTE]
        for text in expressions:
            left += [one.id for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Name)]
        chosen: dict[str, ast.FunctionDef] = {}
        while left:
            node = self.named.get(left.pop())
            if node is not None and node.name not in chosen:
                chosen[node.name] = node
                left += [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        return "\n".join(
            ast.unparse(ast.fix_missing_locations(bare(node))) for node in chosen.values()
        )

    def _update(self) -> ast.FunctionDef | None:
        """The method that puts the environment over a file, of two the one that the class has."""
        name = "update_config_from_env"
        given = any(
            isinstance(node, ast.Dict) and any(key and text_of(key) == name for key in node.keys)
            for one in self.own
            for node in ast.walk(one)
        )
        own, base = self.named.get(f"_{name}"), self.base.get(f"_{name}")
        return own if given or base is None else base

    def _remote_form(self) -> str:
        """The pattern that a remote URL has to match in a file; empty where none is asked for."""
        loader = self.inner.get("_from_file") or self.inner.get("from_file")
        for node in ast.walk(loader) if loader else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "match":
                text = text_of(node.args[0]) or ""
                if "://" in text:
                    return text
        return ""

    def reading(self) -> Reading:
        """How the release takes its values."""
        safely = "_apply_env_converter_safely"
        setter = self.named.get(SETTER) or self.named.get(f"_{SETTER}")
        update = self._update()
        alone = self.inner.get("_from_env") or self.inner.get("from_env")
        start = self.inner.get("_post_init")
        if self.class_based or (start and calls(start, "validate")):
            validates = "file"
        else:
            validates = "env" if update and calls(update, "validate") else ""
        updates = update is not None and calls(update, "validate")
        # Where variables are put over an object of defaults, that was checked before them.
        over = alone is not None and calls(alone, "_update_config_from_env")
        checked = alone is not None and calls(alone, "validate")
        return Reading(
            converts_file=not self.class_based,
            none_on_failure=safely in self.named,
            none_alone=alone is not None and calls(alone, safely),
            env_beside_file=update is not None,
            overrides=setter is not None,
            converts_overrides=setter is not None and calls(setter, safely),
            parses_extra=setter is not None and calls(setter, "loads"),
            validates=validates,
            validates_alone=checked or (updates if over else validates == "file"),
            remote_form=self._remote_form(),
        )


def calls(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function calls one of that name, its own or an attribute's."""
    called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(getattr(one, "attr", getattr(one, "id", "")) == name for one in called)


def text_of(node: ast.expr) -> str | None:
    """A literal's text; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
