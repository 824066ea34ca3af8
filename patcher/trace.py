"""Follows a module's functions in the order in which they run, on every path, without running them.

A small abstract interpreter over :mod:`ast`. It knows statements, branches, local names and calls
between the module's own functions; what a value or a call means is the :class:`Meaning`'s business.
It reads any text, whoever wrote it, so that it can judge hand edits and upstream fixes too. Where
it can't follow something that matters it says so instead of guessing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from .called import happenings, names_used, relevant_inside
from .flow import Flow, Meaning
from .flow import State as State
from .flow import Value as Value
from .names import local_names, surely_bound, type_checking_only, unbound_names
from .walk import children, walk

_MAX_STATES = 512
_M = TypeVar("_M", bound=Meaning)


class UnreadableError(Exception):
    """Something that matters can't be followed; the message says what."""


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
        self._relevance: dict[ast.FunctionDef, bool] = {}
        self._called: dict[ast.FunctionDef, frozenset[str]] = {}
        self._active: list[ast.FunctionDef] = []
        self._module_names = surely_bound(module.body)
        self._unbound: dict[ast.FunctionDef, tuple[str, ...]] = {}
        self._locals: dict[ast.FunctionDef, frozenset[str]] = {}
        self._globals = self._top_level(module.body, State())

    @property
    def unbound(self) -> list[tuple[str, str]]:
        """The names that the functions run so far read although nothing binds them.

        Each with the function that reads it.
        """
        return [(name, node.name) for node, names in self._unbound.items() for name in names]

    def run(self, method: str, states: set[State], arguments: Sequence[Value] = ()) -> set[State]:
        """The states after calling a method of the class from each of the given states.

        Args:
            method: its name.
            states: where it is called.
            arguments: what is known of its positional arguments.

        Raises:
            UnreadableError: where something that matters can't be followed.
        """
        function = self._methods.get(method)
        if function is None:
            return states
        parameters = [item.arg for item in function.args.args][1:]
        given = list(zip(parameters, arguments, strict=False))
        return {after for state in states for after in self._invoke(function, given, state)}

    def _top_level(self, body: Sequence[ast.stmt], state: State) -> State:
        for node in body:
            match node:
                case ast.Import() | ast.ImportFrom():
                    state = self._import(node, state)
                case ast.Assign() | ast.AnnAssign():
                    state = self._bind_targets(node, state)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    state = state.bind(name, None)
                case ast.If(test=test, orelse=orelse) if type_checking_only(test):
                    state = self._top_level(orelse, state)
                case ast.If(body=inner, orelse=orelse):
                    ways = [self._top_level(way, state).names for way in (inner, orelse)]
                    state = replace(state, names=tuple(sorted(set(ways[0]) & set(ways[1]))))
                case ast.Try(body=inner, orelse=orelse):
                    # What a handler binds instead is the case in which the import failed.
                    state = self._top_level([*inner, *orelse], state)
        return state

    def _matters(self, name: str) -> bool:
        """Whether a use of that name matters; an import may have given it another name."""
        return self.meaning.relevant(name) or self.meaning.relevant(self._globals.value(name) or "")

    def _is_relevant(self, function: ast.FunctionDef) -> bool:
        """Whether the function calls what matters, itself or through others of the module."""
        if function not in self._relevance:
            self._relevance[function] = any(
                self._matters(name)
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
                for name in names_used(reached, own=True):
                    homes = (self._functions.get(name), self._methods.get(name))
                    pending += [inner for inner in homes if inner is not None]

    def _calls_of(self, function: ast.FunctionDef) -> frozenset[str]:
        if function not in self._called:
            self._called[function] = names_used(function)
        return self._called[function]

    def _invoke(
        self,
        function: ast.FunctionDef,
        arguments: Sequence[tuple[str, Value]],
        state: State,
    ) -> set[State]:
        # What a function does when it calls itself it does in its outer round too.
        if function in self._active:
            return {state}
        own = self._local_names(function)
        visible = tuple(item for item in self._globals.names if item[0] not in own)
        inner = replace(state, names=visible)
        for name, value in arguments:
            inner = inner.bind(name, value)
        if function not in self._unbound:
            self._unbound[function] = unbound_names(function, self._module_names)
        self._active.append(function)
        flow = self._block(function.body, {inner})
        self._active.pop()
        return {replace(after, names=state.names) for after in flow.falls | flow.returns}

    def _local_names(self, function: ast.FunctionDef) -> frozenset[str]:
        if function not in self._locals:
            self._locals[function] = local_names(function)
        return self._locals[function]

    def _block(self, body: Sequence[ast.stmt], states: set[State]) -> Flow:
        flow = Flow(falls=set(states))
        for statement in body:
            if len(flow.falls) > _MAX_STATES:
                raise UnreadableError("it has too many paths to follow")
            before, flow.falls = flow.falls, set()
            for state in before:
                flow.merge(self._statement(statement, state))
        return flow

    def _statement(self, node: ast.stmt, state: State) -> Flow:
        match node:
            case ast.If():
                return self._branch(node, state)
            case ast.While() | ast.For() | ast.AsyncFor():
                return self._loop(node, state)
            case ast.With() | ast.AsyncWith():
                return self._with(node, state)
            case ast.Match():
                flow = Flow(falls=self._expression(node.subject, state))
                for case in node.cases:
                    flow.merge(self._block(case.body, {state}))
                return flow
            case ast.Return():
                return Flow(returns=self._expression(node.value, state))
            case ast.Raise():
                self._children(node, state)
                return Flow()
            case ast.Break():
                return Flow(breaks={state})
            case ast.Continue():
                return Flow(continues={state})
            case ast.Import() | ast.ImportFrom():
                return Flow(falls={self._import(node, state)})
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if relevant_inside(node, self._matters):
                    raise UnreadableError(f"{node.name} is defined inside a function")
                return Flow(falls={state.bind(node.name, None)})
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self._try(node, state)  # type: ignore[arg-type]
        after = self._children(node, state)
        return Flow(falls={self._bind_targets(node, known) for known in after})

    def _children(self, node: ast.stmt, state: State) -> set[State]:
        inner = [child for child in children(node) if isinstance(child, ast.expr)]
        return self._expressions(inner, {state})

    def _bind_targets(self, node: ast.AST, state: State) -> State:
        """Bind the plain names of an assignment to what its value is, and forget all others."""
        value: Value = None
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets, value = node.targets, self.meaning.value(node.value, state)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets = [node.target]
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                value = self.meaning.value(node.value, state)
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.expr):
            targets = [node]
        for target in targets:
            plain = isinstance(target, ast.Name) and not isinstance(node, ast.expr)
            for inner in walk(target):
                if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
                    state = state.bind(inner.id, value if plain else None)
        return state

    def _branch(self, node: ast.If, state: State) -> Flow:
        flow = Flow()
        for before in self._expression(node.test, state):
            for taken, known in self.meaning.test(node.test, before):
                flow.merge(self._block(node.body if taken else node.orelse, {known}))
        return flow

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor, state: State) -> Flow:
        """Every number of rounds, until no round leads to a state that was not there before."""
        flow, done = Flow(), set[State]()
        seen: set[State] = set()
        rounds = {state} if isinstance(node, ast.While) else self._expression(node.iter, state)
        while rounds - seen:
            fresh = rounds - seen
            seen |= fresh
            if len(seen) > _MAX_STATES:
                raise UnreadableError("it has too many paths to follow")
            entered, left = self._next_round(node, fresh)
            done |= left
            step = self._block(node.body, entered)
            rounds = step.falls | step.continues
            flow.returns |= step.returns
            flow.falls |= step.breaks
        flow.merge(self._block(node.orelse, done))
        return flow

    def _next_round(
        self, node: ast.While | ast.For | ast.AsyncFor, states: set[State]
    ) -> tuple[set[State], set[State]]:
        """The states that enter the loop's body, and those that leave the loop."""
        if not isinstance(node, ast.While):
            return {self._bind_targets(node.target, known) for known in states}, states
        ways = [
            (taken, known)
            for state in states
            for before in self._expression(node.test, state)
            for taken, known in self.meaning.test(node.test, before)
        ]
        return {s for taken, s in ways if taken}, {s for taken, s in ways if not taken}

    def _with(self, node: ast.With | ast.AsyncWith, state: State) -> Flow:
        states = {state}
        for item in node.items:
            states = self._expressions([item.context_expr], states)
            if item.optional_vars is not None:
                target = item.optional_vars
                states = {self._bind_targets(target, known) for known in states}
        flow = self._block(node.body, states)
        if any("suppress" in names_used(item.context_expr) for item in node.items):
            flow.falls |= states
        return flow

    def _try(self, node: ast.Try, state: State) -> Flow:
        flow = self._block(node.body, {state})
        if node.orelse:
            after, flow.falls = flow.falls, set()
            flow.merge(self._block(node.orelse, after))
        imports = [name for item in node.body for name in _imported_modules(item)]
        for handler in node.handlers:
            failed = state
            if _catches_import_error(handler):
                failed = self.meaning.import_fails(state, imports)
            if handler.name is not None:
                failed = failed.bind(handler.name, None)
            flow.merge(self._block(handler.body, {failed}))
        if not node.finalbody:
            return flow
        last = self._block(node.finalbody, flow.falls)
        for early in ("returns", "breaks", "continues"):
            ended = self._block(node.finalbody, getattr(flow, early))
            last.leave(ended)
            getattr(last, early).update(ended.falls)
        return last

    def _expression(self, node: ast.expr | None, state: State) -> set[State]:
        return self._expressions([node], {state}) if node is not None else {state}

    def _expressions(self, nodes: Sequence[ast.expr], states: set[State]) -> set[State]:
        for root in nodes:
            for node, certain in happenings(root):
                if isinstance(node, ast.Lambda):
                    if relevant_inside(node, self._matters):
                        raise UnreadableError("what matters is called in a lambda")
                    continue
                after = {then for state in states for then in self._happen(node, state)}
                states = after if certain else states | after
        return states

    def _happen(self, node: ast.Call | ast.NamedExpr, state: State) -> set[State]:
        if isinstance(node, ast.NamedExpr):
            return {state.bind(node.target.id, self.meaning.value(node.value, state))}
        return self._call(node, state)

    def _call(self, node: ast.Call, state: State) -> set[State]:
        function: ast.FunctionDef | None = None
        first = 0
        match node.func:
            case ast.Name(id=name):
                function = self._functions.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                function, first = self._methods.get(name), 1
        if function is None or not self._is_relevant(function):
            return {self.meaning.call(node, state)}
        signature = function.args
        parameters = [item.arg for item in [*signature.posonlyargs, *signature.args]][first:]
        given = list(zip(parameters, node.args, strict=False))
        given += [(word.arg, word.value) for word in node.keywords if word.arg is not None]
        arguments = [(name, self.meaning.value(value, state)) for name, value in given]
        return self._invoke(function, arguments, state)

    def _import(self, node: ast.Import | ast.ImportFrom, state: State) -> State:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                known = self.meaning.imported(module, alias.name)
                state = state.bind(alias.asname or alias.name, known)
            else:
                known = self.meaning.imported(alias.name, "")
                root = alias.name.partition(".")[0]
                if alias.asname is None and root != alias.name:
                    known = self.meaning.imported(root, "")
                state = state.bind(alias.asname or root, known)
        return state


def _functions(body: Sequence[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _imported_modules(node: ast.stmt) -> Iterable[str]:
    if isinstance(node, ast.ImportFrom):
        yield node.module or ""
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    catching = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
    return any(
        isinstance(node, ast.Name) and node.id in catching for node in ast.walk(handler.type)
    )
