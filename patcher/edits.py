"""What is left of a worker module without the statements that register the model.

A worker that somebody edited does the work only if it is the released one apart from that edit: a
stray line elsewhere can keep vLLM from starting. Releases are known by a digest of what is left.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .digest import sha256
from .guard import GUARD
from .patch import Rest
from .registration import CREATE, REGISTER, asked_to_unwrap

PLACES = ("init_worker_distributed_environment", "load_model", "initialize_from_config")
_ELSEWHERE = "elsewhere"
_REGISTER_HERE = "_kvpatch_register_model"


def without_registration(module: ast.Module, own: Sequence[str] = ()) -> Rest:
    """A worker module without registration and without the creation of the connector.

    Args:
        module: ``vllm/v1/worker/gpu_worker.py``, parsed.
        own: the source of each function that kvpatch inserts.
    """
    reader = _Reader(frozenset(_Reader(frozenset()).text(ast.parse(text)) for text in own))
    text = reader.text(module)
    return Rest(sha256(text.encode()), tuple(dict.fromkeys(reader.clashes)))


def imports_at_load(module: ast.Module, package: str) -> bool:
    """Whether loading a module imports that package, and nothing catches a failure."""
    for node in module.body:
        match node:
            case ast.ImportFrom(module=str(name), level=0):
                names = [name]
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case _:
                continue
        if any(name.partition(".")[0] == package for name in names):
            return True
    return False


@dataclass
class _Reader:
    """Writes a syntax tree down, without the edits."""

    own: frozenset[str]
    clashes: list[str] = field(default_factory=list)
    _place: str = ""

    def text(self, node: object) -> str:
        """The node in one line; the same in every Python release."""
        if isinstance(node, ast.Module):
            return self._scope(node, node.body)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            outer, self._place = self._place, _ELSEWHERE
            if isinstance(node, ast.FunctionDef) and node.name in PLACES:
                self._place = node.name
            text = self._scope(node, node.body) if self._place in PLACES else self._node(node)
            self._place = outer
            return text
        if isinstance(node, ast.AST):
            return self._node(node)
        if isinstance(node, list):
            kept = [item for item in node if not self._is_edit(item)]
            return f"[{','.join(map(self.text, kept))}]"
        return repr(node)

    def _scope(self, node: ast.AST, body: Sequence[ast.stmt]) -> str:
        edits = [names for item in _statements(body) if (names := self._bound(item)) is not None]
        text = self._node(node)
        bound = {name for names in edits for name in names}
        self.clashes += sorted(name for name in bound if repr(name) in text)
        return text

    def _node(self, node: ast.AST) -> str:
        parts = [
            f"{name}={self.text(value)}"
            for name, value in ast.iter_fields(node)
            if name not in ("ctx", "kind", "type_comment", "type_ignores")
            and value is not None
            and value != []
        ]
        return f"{type(node).__name__}({','.join(parts)})"

    def _is_edit(self, item: object) -> bool:
        return isinstance(item, ast.stmt) and self._bound(item) is not None

    def _bound(self, node: ast.stmt) -> frozenset[str] | None:
        """The names an edit binds; None for a statement that is none."""
        if isinstance(node, ast.Pass):
            return frozenset()
        if self._place == _ELSEWHERE:
            return None
        match node:
            case ast.Import(names=names) if all(map(_lmcaches, [item.name for item in names])):
                return frozenset(item.asname or item.name.partition(".")[0] for item in names)
            case ast.ImportFrom(module=str(module), level=0, names=names) if _lmcaches(module):
                return frozenset(item.asname or item.name for item in names)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=[]):
                return self._all([*body, *orelse, *_handled(handlers)])
            case ast.FunctionDef() if not self._place and self.own:
                is_own = _Reader(frozenset()).text(ast.Module([node], [])) in self.own
                return frozenset() if is_own else None
        return self._bound_inside(node) if self._place in PLACES else None

    def _bound_inside(self, node: ast.stmt) -> frozenset[str] | None:
        match node:
            case ast.Expr(value=ast.Call(func=function, args=args, keywords=words)):
                given = [*args, *(word.value for word in words)]
                known = _called(function) in (CREATE, REGISTER, _REGISTER_HERE)
                return frozenset() if known and all(map(_plain, given)) else None
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _of_runner(value):
                return frozenset({name})
            case ast.While(test=test, body=[ast.Assign() as step], orelse=[]):
                name = asked_to_unwrap(test) or ""
                unwraps = ast.unparse(step) == f"{name} = {name}.unwrap()"
                return frozenset({name}) if unwraps else None
            case ast.If(test=test, body=body, orelse=orelse) if _plain_test(test):
                return self._all([*body, *orelse])
        return None

    def _all(self, body: Sequence[ast.stmt]) -> frozenset[str] | None:
        found = [self._bound(item) for item in body]
        known = [names for names in found if names is not None]
        # Nothing but `pass` is no edit: a branch of the release may be that.
        if len(known) < len(found) or all(isinstance(item, ast.Pass) for item in body):
            return None
        return frozenset(name for names in known for name in names)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of one scope, at every depth."""
    for item in body:
        yield item
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(item, name, ()))
        for handler in getattr(item, "handlers", ()):
            yield from _statements(handler.body)


def _handled(handlers: Sequence[ast.ExceptHandler]) -> Iterator[ast.stmt]:
    """What handlers do besides setting names to None, which is what a failed import leaves."""
    for item in (item for handler in handlers for item in handler.body):
        match item:
            case ast.Assign(targets=targets, value=ast.Constant(value=None)):
                if all(isinstance(target, ast.Name) for target in targets):
                    continue
        yield item


def _lmcaches(module: str) -> bool:
    return module.partition(".")[0] == "lmcache"


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name) if name == REGISTER and _plain(owner):
            return name
    return ""


def _plain(node: ast.expr) -> bool:
    """Whether an expression only names things, or asks the runner for its model."""
    match node:
        case ast.Name() | ast.Constant(value=str()):
            return True
        case ast.Attribute(value=inner):
            return _plain(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="get_model"), args=[], keywords=[]):
            return _plain(inner)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _plain_test(test) and _plain(body) and _plain(orelse)
    return False


def _of_runner(node: ast.expr) -> bool:
    """Whether an expression only names the model runner, or something it has or gives."""
    return _plain(node) and ("self.model_runner" in (text := ast.unparse(node)) or "(" in text)


def _plain_test(node: ast.expr) -> bool:
    """Whether a condition asks for the guard, for LMCache's names, or for a method, and no more."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _plain_test(inner)
        case ast.Call(func=ast.Name(id=name), args=[config], keywords=[]) if name == GUARD:
            return ast.unparse(config) in ("self.vllm_config", "vllm_config")
        case ast.Compare(left=ast.Name(), ops=[ast.Is() | ast.IsNot()]):
            return ast.unparse(node.comparators[0]) == "None"
        case ast.Call(func=ast.Name(id="hasattr"), args=[subject, ast.Constant(value=str())]):
            return _plain(subject)
        case ast.Name():
            return True
    return False
