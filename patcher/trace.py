"""Follows a module's functions in the order in which they run, on every path, without running them.

A small abstract interpreter over :mod:`ast`. It knows statements, branches, local names and calls
between the module's own functions; what a value or a call means is the :class:`Meaning`'s business.
It reads any text, whoever wrote it, so that it can judge hand edits and upstream fixes too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

Value = str | None
"""What is known of a value, in the words of a meaning; None where nothing is."""

_MAX_DEPTH = 12
_MAX_STATES = 512


@dataclass(frozen=True)
class State:
    """What holds at one point of one path."""

    facts: frozenset[str] = frozenset()
    names: tuple[tuple[str, str], ...] = ()

    def value(self, name: str) -> Value:
        """What is known of a local name."""
        return dict(self.names).get(name)

    def bind(self, name: str, value: Value) -> State:
        """The state after an assignment to a local name."""
        names = {key: known for key, known in self.names if key != name}
        if value is not None:
            names[name] = value
        return replace(self, names=tuple(sorted(names.items())))

    def add(self, fact: str) -> State:
        """The state in which one more thing has happened."""
        return self if fact in self.facts else replace(self, facts=self.facts | {fact})


class Meaning(Protocol):
    """What the names, values, calls and tests of a module stand for."""

    def value(self, node: ast.expr, state: State) -> Value:
        """What is known of an expression's value."""

    def call(self, node: ast.Call, state: State) -> State:
        """The state after a call of something that is not followed."""

    def test(self, node: ast.expr, state: State) -> Iterable[tuple[bool, State]]:
        """The branches that a test can take, each with what is then known."""

    def imported(self, module: str, name: str) -> Value:
        """What is known of an imported name."""

    def import_fails(self, state: State, modules: Sequence[str]) -> State:
        """The state in a handler for a try block that imports those modules."""

    def relevant(self, name: str) -> bool:
        """Whether a call of that name can matter."""


_M = TypeVar("_M", bound=Meaning)


class TooManyPathsError(Exception):
    """The module has more distinct states than an analysis can follow."""


@dataclass
class _Flow:
    falls: set[State] = field(default_factory=set)
    returns: set[State] = field(default_factory=set)


class Tracer(Generic[_M]):
    """Runs functions of one module over sets of states.

    Args:
        module: the parsed module.
        class_name: the class whose methods ``self.<name>(...)`` calls.
        meaning: what names and calls stand for.
    """

    def __init__(self, module: ast.Module, class_name: str, meaning: _M) -> None:
        self.meaning = meaning
        self._functions = _functions(module.body)
        self._methods: Mapping[str, ast.FunctionDef] = {}
        for node in module.body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                self._methods = _functions(node.body)
        self._globals = State()
        for statement in module.body:
            compound = isinstance(statement, (ast.Try, ast.If))
            for inner in ast.walk(statement) if compound else (statement,):
                if isinstance(inner, (ast.Import, ast.ImportFrom)):
                    self._globals = self._import(inner, self._globals)
        self._relevance: dict[ast.FunctionDef, bool] = {}
        self._called: dict[ast.FunctionDef, frozenset[str]] = {}

    def has_method(self, name: str) -> bool:
        """Whether the class defines that method."""
        return name in self._methods

    def run(self, method: str, states: set[State]) -> set[State]:
        """The states after calling a method of the class from each of the given states.

        Raises:
            TooManyPathsError: where the paths are too many to follow.
        """
        function = self._methods.get(method)
        if function is None:
            return states
        return {after for state in states for after in self._invoke(function, [], state, 0)}

    def _is_relevant(self, function: ast.FunctionDef) -> bool:
        """Whether the function calls what matters, itself or through others of the module."""
        if function not in self._relevance:
            self._relevance[function] = any(
                self.meaning.relevant(name)
                for reached in self._reachable(function)
                for name in self._calls_of(reached)
            )
        return self._relevance[function]

    def _reachable(self, function: ast.FunctionDef) -> Iterable[ast.FunctionDef]:
        seen, pending = set[ast.FunctionDef](), [function]
        while pending:
            reached = pending.pop()
            if reached not in seen:
                seen.add(reached)
                yield reached
                for name in self._calls_of(reached):
                    homes = (self._functions.get(name), self._methods.get(name))
                    pending += [inner for inner in homes if inner is not None]

    def _calls_of(self, function: ast.FunctionDef) -> frozenset[str]:
        if function not in self._called:
            self._called[function] = frozenset(_called_names(function))
        return self._called[function]

    def _invoke(
        self,
        function: ast.FunctionDef,
        arguments: Sequence[tuple[str, Value]],
        state: State,
        depth: int,
    ) -> set[State]:
        if depth > _MAX_DEPTH:
            return {state}
        inner = replace(state, names=self._globals.names)
        for name, value in arguments:
            inner = inner.bind(name, value)
        flow = self._block(function.body, {inner}, depth)
        return {replace(after, names=state.names) for after in flow.falls | flow.returns}

    def _block(self, body: Sequence[ast.stmt], states: set[State], depth: int) -> _Flow:
        flow = _Flow(falls=set(states))
        for statement in body:
            if not flow.falls:
                break
            if len(flow.falls) > _MAX_STATES:
                raise TooManyPathsError
            after = _Flow()
            for state in flow.falls:
                step = self._statement(statement, state, depth)
                after.falls |= step.falls
                after.returns |= step.returns
            flow.falls = after.falls
            flow.returns |= after.returns
        return flow

    def _statement(self, node: ast.stmt, state: State, depth: int) -> _Flow:
        match node:
            case ast.If() | ast.While():
                return self._branch(node, state, depth)
            case ast.For() | ast.AsyncFor():
                states = self._expression(node.iter, state, depth)
                flow = self._block(node.body, states, depth)
                return self._then(node.orelse, flow, states, depth)
            case ast.With() | ast.AsyncWith():
                states = {state}
                for item in node.items:
                    states = self._expressions([item.context_expr], states, depth)
                return self._block(node.body, states, depth)
            case ast.Try():
                return self._try(node, state, depth)
            case ast.Match():
                flow = _Flow(falls=self._expression(node.subject, state, depth))
                for case in node.cases:
                    self._merge(flow, self._block(case.body, {state}, depth))
                return flow
            case ast.Return():
                return _Flow(returns=self._expression(node.value, state, depth))
            case ast.Raise():
                return _Flow()
            case ast.Import() | ast.ImportFrom():
                return _Flow(falls={self._import(node, state)})
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                return _Flow(falls=self._assign(name, value, state, depth))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                return _Flow(falls=self._assign(name, value, state, depth))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return _Flow(falls={state.bind(node.name, None)})
        states = {state}
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                states = self._expressions([child], states, depth)
        return _Flow(falls=states)

    def _branch(self, node: ast.If | ast.While, state: State, depth: int) -> _Flow:
        flow = _Flow()
        for before in self._expression(node.test, state, depth):
            for taken, known in self.meaning.test(node.test, before):
                step = self._block(node.body if taken else node.orelse, {known}, depth)
                if taken and isinstance(node, ast.While):
                    again = set[State]()
                    for after in step.falls:
                        again |= {
                            last for more, last in self.meaning.test(node.test, after) if not more
                        }
                    step.falls = again or step.falls
                self._merge(flow, step)
        return flow

    def _then(
        self, body: Sequence[ast.stmt], flow: _Flow, skipped: set[State], depth: int
    ) -> _Flow:
        rest = self._block(body, flow.falls | skipped, depth)
        rest.returns |= flow.returns
        return rest

    def _try(self, node: ast.Try, state: State, depth: int) -> _Flow:
        flow = self._block(node.body, {state}, depth)
        flow = self._then(node.orelse, flow, set(), depth) if node.orelse else flow
        imports = [name for item in node.body for name in _imported_modules(item)]
        failed = self.meaning.import_fails(state, imports)
        for handler in node.handlers:
            self._merge(flow, self._block(handler.body, {failed}, depth))
        if not node.finalbody:
            return flow
        last = self._block(node.finalbody, flow.falls | flow.returns, depth)
        return _Flow(falls=last.falls, returns=last.returns | flow.returns)

    def _assign(self, name: str, value: ast.expr, state: State, depth: int) -> set[State]:
        after = self._expression(value, state, depth)
        return {known.bind(name, self.meaning.value(value, known)) for known in after}

    def _expression(self, node: ast.expr | None, state: State, depth: int) -> set[State]:
        return self._expressions([node], {state}, depth) if node is not None else {state}

    def _expressions(self, nodes: Sequence[ast.expr], states: set[State], depth: int) -> set[State]:
        for root in nodes:
            for call in _calls_inside_out(root):
                states = {after for state in states for after in self._call(call, state, depth)}
        return states

    def _call(self, node: ast.Call, state: State, depth: int) -> set[State]:
        match node.func:
            case ast.Name(id=name):
                function, first = self._functions.get(name), 0
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                function, first = self._methods.get(name), 1
            case _:
                function, first = None, 0
        if function is None or not self._is_relevant(function):
            return {self.meaning.call(node, state)}
        parameters = [item.arg for item in [*function.args.posonlyargs, *function.args.args]][
            first:
        ]
        given = list(zip(parameters, node.args, strict=False))
        given += [(word.arg, word.value) for word in node.keywords if word.arg is not None]
        arguments = [(name, self.meaning.value(value, state)) for name, value in given]
        return self._invoke(function, arguments, state, depth + 1)

    def _import(self, node: ast.Import | ast.ImportFrom, state: State) -> State:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                known = self.meaning.imported(module, alias.name)
                state = state.bind(alias.asname or alias.name, known)
            elif alias.asname:
                state = state.bind(alias.asname, self.meaning.imported(alias.name, ""))
        return state

    @staticmethod
    def _merge(flow: _Flow, step: _Flow) -> None:
        flow.falls |= step.falls
        flow.returns |= step.returns


def _functions(body: Sequence[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _called_names(function: ast.FunctionDef) -> Iterable[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr


def _imported_modules(node: ast.stmt) -> Iterable[str]:
    if isinstance(node, ast.ImportFrom):
        yield node.module or ""
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)


def _calls_inside_out(root: ast.expr) -> Sequence[ast.Call]:
    found: list[ast.Call] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Lambda):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)
        if isinstance(node, ast.Call):
            found.append(node)

    visit(root)
    return found
