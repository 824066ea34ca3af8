"""Facts of single classes and functions: attributes, signatures, calls, reads and their guards."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from .statements import catches, dotted, steps
from .symbols import Call, Class, Function, Read, Signature
from .walk import children, statements, walk

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_ATTRIBUTE_ERRORS = frozenset({"AttributeError", "Exception", "BaseException"})


def class_facts(node: ast.ClassDef) -> Class:
    """Its bases, and the attributes that its body and its methods give it."""
    members: dict[str, int] = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            members.setdefault(item.name, item.lineno)
            for target in _targets(item):
                if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    members.setdefault(target.attr, target.lineno)
        elif isinstance(item, (ast.Assign, ast.AnnAssign)):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    members.setdefault(target.id, item.lineno)
        elif isinstance(item, ast.ClassDef):
            members.setdefault(item.name, item.lineno)
    bases = tuple(filter(None, (dotted(_unsubscripted(base)) for base in node.bases)))
    return Class(node.lineno, bases, members)


def _targets(function: FunctionNode) -> Iterator[ast.expr]:
    """What the statements of a function assign to."""
    for node in statements(function.body):
        if isinstance(node, ast.Assign):
            whole = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
            whole = [node.target]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            whole = [item.optional_vars for item in node.items if item.optional_vars]
        else:
            continue
        for target in whole:
            yield from _parts(target)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _parts(item)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def function_facts(node: FunctionNode) -> Function:
    """Its signature, and what it imports, calls, reads and returns."""
    arguments = node.args
    names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
    keywords = [arg.arg for arg in arguments.kwonlyargs]
    required = [
        arg.arg
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    signature = Signature(
        tuple(names),
        len(arguments.defaults),
        tuple(keywords),
        tuple(required),
        arguments.vararg is not None,
        arguments.kwarg is not None,
    )
    everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    annotations = {arg.arg: _annotation(arg.annotation) for arg in everything if arg.annotation}
    inner = list(walk(node))
    for item in inner:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotations.setdefault(item.target.id, _annotation(item.annotation))
    guards = _guards(inner)
    conditions = _conditions(node)
    calls = [_call(item, conditions) for item in inner if isinstance(item, ast.Call)]
    reads = [
        Read(item.lineno, dotted(item.value), item.attr, _guarded(item, guards, conditions))
        for item in inner
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Load) and dotted(item.value)
    ]
    returns = [
        ast.unparse(item.value)
        for item in inner
        if isinstance(item, ast.Return) and item.value is not None
    ]
    return Function(
        node.lineno,
        signature,
        annotations,
        tuple(steps(node.body)),
        tuple(call for call in calls if call.callee),
        tuple(reads),
        tuple(returns),
    )


def _guarded(
    node: ast.Attribute,
    guards: frozenset[tuple[str, str]],
    conditions: Mapping[int, tuple[str, ...]],
) -> bool:
    """Whether the function copes with the attribute's absence, or asked about another one first."""
    owner = dotted(node.value)
    asked = (f"hasattr({owner},", f"getattr({owner},")
    tests = conditions.get(id(node), ())
    return (owner, node.attr) in guards or any(word in test for test in tests for word in asked)


def _annotation(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node) if node is not None else ""


def _call(node: ast.Call, conditions: Mapping[int, tuple[str, ...]]) -> Call:
    spread = any(isinstance(arg, ast.Starred) for arg in node.args)
    spread = spread or any(word.arg is None for word in node.keywords)
    words = tuple(word.arg for word in node.keywords if word.arg)
    tests = conditions.get(id(node), ())
    return Call(
        node.lineno, dotted(node.func), len(node.args), words, spread, _argument_names(node), tests
    )


def _argument_names(node: ast.Call) -> tuple[str, ...]:
    return tuple(arg.id if isinstance(arg, ast.Name) else "" for arg in node.args)


def _conditions(function: ast.AST) -> Mapping[int, tuple[str, ...]]:
    """The tests that must be true for each call and attribute under an if, by the node's id."""
    found: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[ast.AST, tuple[str, ...]]] = [(function, ())]
    while waiting:
        node, tests = waiting.pop()
        if isinstance(node, (ast.Call, ast.Attribute)) and tests:
            found[id(node)] = tests
        if isinstance(node, (ast.If, ast.IfExp)):
            body = node.body if isinstance(node.body, list) else [node.body]
            orelse = node.orelse if isinstance(node.orelse, list) else [node.orelse]
            inside = (*tests, ast.unparse(node.test))
            waiting.append((node.test, tests))
            waiting += [(child, inside) for child in body]
            waiting += [(child, tests) for child in orelse]
        else:
            waiting += [(child, tests) for child in children(node)]
    return found


def _guards(nodes: Sequence[ast.AST]) -> frozenset[tuple[str, str]]:
    """The (owner, attribute) pairs whose absence the function of those nodes copes with."""
    found: set[tuple[str, str]] = set()
    for item in nodes:
        if isinstance(item, ast.Call) and dotted(item.func) in ("hasattr", "getattr"):
            safe = dotted(item.func) == "hasattr" or len(item.args) > 2
            if safe and len(item.args) > 1 and isinstance(item.args[1], ast.Constant):
                found.add((dotted(item.args[0]), str(item.args[1].value)))
        elif isinstance(item, ast.Try) and any(
            catches(h, _ATTRIBUTE_ERRORS) for h in item.handlers
        ):
            for inner in (i for part in item.body for i in walk(part)):
                if isinstance(inner, ast.Attribute) and dotted(inner.value):
                    found.add((dotted(inner.value), inner.attr))
    return frozenset(found)
