"""What is wrong with an LMCache configuration on a given release, and what would mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from . import (
    lint_attention,
    lint_choices,
    lint_combinations,
    lint_connector,
    lint_environment,
    lint_hashing,
    lint_launch,
    lint_lookup,
    lint_names,
    lint_numbers,
    lint_parallel,
    lint_remote,
    lint_tiers,
    lint_values,
    rules,
)
from .coercion import Effective, effective
from .key_history import History
from .lint_context import Context
from .rules import Finding, Level
from .schema import Schema
from .secrecy import without_logins
from .surroundings import Surroundings
from .yaml_source import YamlFile


def _options(context: Context) -> Iterator[Finding]:
    """What vLLM's parser stops at, whose options take a while to read."""
    if context.launch is not None:
        from .lint_options import options

        yield from options(context)


_Checks = tuple[Callable[[Context], Iterator[Finding]], ...]
_CONFIGURATION: _Checks = (
    lint_names.keys,
    lint_names.variables,
    lint_values.values,
    lint_values.turned,
    lint_choices.choices,
    lint_numbers.sizes,
    lint_numbers.impossible,
    lint_combinations.blending,
    lint_numbers.blending,
    lint_combinations.patches,
    lint_combinations.gds,
    lint_tiers.tiers,
    lint_tiers.loading,
    lint_lookup.lookup,
    lint_remote.url,
    lint_hashing.hashing,
)
_COMMAND: _Checks = (lint_launch.launch, _options)
_TOGETHER: _Checks = (
    lint_names.overrides,
    lint_parallel.ranks,
    lint_parallel.slices,
    lint_parallel.adapters,
    lint_attention.attention,
    lint_connector.requests,
    lint_environment.environment,
    lint_environment.handed_on,
)


@dataclass(frozen=True, eq=False, repr=False)
class Linted:
    """What came of it."""

    findings: tuple[Finding, ...]
    effective: Effective | None

    @property
    def clean(self) -> bool:
        """Whether there is no error."""
        return not any(finding.level is Level.ERROR for finding in self.findings)


def lint(file: YamlFile, schema: Schema, history: History, around: Surroundings) -> Linted:
    """Check a configuration.

    Args:
        file: what was read.
        schema: of the LMCache release.
        history: of the keys of all releases.
        around: where it will run.
    """
    found = [
        Finding(
            rules.DUPLICATE if problem.kind == "duplicate" else rules.SYNTAX,
            problem.message,
            line=problem.line,
            column=problem.column,
        )
        for problem in file.problems
    ]
    if not file.readable:
        return Linted(tuple(found), None)
    front = around.launch.environ if around.launch else {}
    environ = {**(around.environ or {}), **front}
    seen = effective(
        schema,
        file.values,
        environ,
        around.launch.overrides if around.launch else None,
        alone=not file.written,
    )
    known = replace(around, environ=environ if environ or around.environ is not None else None)
    context = Context(
        file=file,
        schema=schema,
        history=history,
        effective=seen,
        whole_environ=around.environ is not None,
        **vars(known),
    )
    named_otherwise = lint_names.stand_ins(context)
    for check in _checks(context):
        found.extend(_settled(check, named_otherwise))
    if around.launch is not None and around.launch.unsure.any:
        from .lint_unsure import softened

        found = list(softened(found, context))
    if not file.written:
        found = [_without_file(finding) for finding in found]
    # LMCache's own words, and others', may quote an address.
    found = [replace(one, message=without_logins(one.message)) for one in found]
    return Linted(tuple(sorted(found, key=_order)), seen)


def _checks(context: Context) -> Iterator[Iterator[Finding]]:
    """The checks that say something of this configuration with its command."""
    if context.launch is None or not context.launch.elsewhere(context.vllm):
        yield from (check(context) for check in (*_CONFIGURATION, *_COMMAND, *_TOGETHER))
        return
    # Nothing reads the configuration there: what it says is judged without the command.
    yield from (check(context) for check in _COMMAND)
    if context.configured:
        apart = replace(context, launch=None)
        yield from (check(apart) for check in _CONFIGURATION)


def _settled(found: Iterator[Finding], stand_ins: Mapping[str, bool]) -> Iterator[Finding]:
    """The findings without what would write a key whose value stands under another name.

    Where a certain rename brings the key, what is said of its absence waits for that.
    """
    for finding in found:
        fix = finding.fix
        if fix is None or fix.kind != "set" or fix.key not in stand_ins:
            yield finding
        elif not stand_ins[fix.key]:
            yield replace(finding, fix=None)


def _without_file(finding: Finding) -> Finding:
    """A finding about variables alone: there is no file to be mended."""
    source = "environment" if finding.source == "file" else finding.source
    return replace(finding, source=source, fix=None)


def _order(finding: Finding) -> tuple[int, int, int, str, str]:
    """First the file, by its lines, then vLLM's own, then what has no line."""
    where = 2 if not (finding.line or finding.path) else 1 if finding.path else 0
    return (where, finding.line, finding.column, finding.rule.id, finding.key)
