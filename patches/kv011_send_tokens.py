"""Send the tokens of a request as a list, which LMCache's encoder knows."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

from kvpatch.blending import find, function
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target, Transform

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

CLIENT = "lmcache/v1/lookup_client/lmcache_lookup_client.py"

_LOOKUP = "LMCacheLookupClient.lookup"
_ENCODED = "tokens_buf = self.encoder.encode(token_ids)"
_SENT = "msg_buf = [token_ids, lookup_id, request_configs_str]"
_HASHED = "self.token_database.process_tokens(token_ids, make_key=False)"
_LISTED = """
# kvpatch KV011: vLLM hands over its ConstantList, which the encoder refuses.
token_ids = list(token_ids)
"""


def _send_list(statement: str) -> Transform:
    def transform(module: cst.Module) -> cst.Module:
        """Make a list of the tokens right before they are handed over.

        Raises:
            Refusal: where the statement is not there exactly once.
        """
        from kvpatch import anchors

        return anchors.replace(
            module,
            _LOOKUP,
            statement,
            lambda old: anchors.like(old, module, _LISTED, statement),
        )

    return transform


def sends_list(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the tokens that go to the worker are a list, whatever vLLM gave.

    Only the list made right before the one statement that hands the tokens over is believed: a
    list made elsewhere need not be what is sent.
    """
    lookup = function(module, _LOOKUP)
    if lookup is None:
        return Judgement(False, "no lookup client is defined here")
    suites = [
        suite
        for node in ast.walk(lookup)
        for _, suite in ast.iter_fields(node)
        if isinstance(suite, list)
    ]
    sent = [(suite, at) for suite in suites for at, node in enumerate(suite) if _hands_over(node)]
    if len(sent) != 1:
        return Judgement(False, "how tokens are sent is not as in any release")
    suite, at = sent[0]
    if not at or find(suite[at - 1], "token_ids = list(token_ids)") != [suite[at - 1]]:
        return Judgement(False, "tokens are sent as vLLM's ConstantList, which msgpack refuses")
    # Beside the two statements: the parameter is read for the hashes, and nothing is rebound.
    known = [*ast.walk(suite[at]), *ast.walk(suite[at - 1])]
    known += [node for call in find(lookup, _HASHED) for node in ast.walk(call)]
    strange: list[ast.AST] = [
        node
        for node in ast.walk(module)
        if (isinstance(node, ast.Name) and node.id == "list" and not _loads(node))
        or (isinstance(node, ast.alias) and "list" in (node.name, node.asname))
    ]
    strange += [
        node
        for node in ast.walk(lookup)
        if isinstance(node, ast.Name) and node.id == "token_ids" and node not in known
    ]
    strange += [
        node
        for node in ast.walk(lookup)
        if isinstance(node, ast.Subscript) and not _loads(node) and find(node.value, "msg_buf")
    ]
    if strange:
        return Judgement(False, "what is done with the tokens beside is not as in any release")
    return Judgement(True, "tokens are sent as a list")


def _hands_over(node: ast.AST) -> bool:
    return any(find(node, raw) == [node] for raw in (_ENCODED, _SENT))


def _loads(node: ast.Name | ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Load)


def released_but_for_lookup(stock: ast.Module, patched: ast.Module) -> Judgement:
    """Judge whether the patched module is the stock one outside the body of the lookup."""
    if ast.dump(_without_lookup(stock)) == ast.dump(_without_lookup(patched)):
        return Judgement(True, "outside the lookup the module is the stock one")
    return Judgement(False, "the module differs from the stock one beyond the lookup")


def _without_lookup(module: ast.Module) -> ast.Module:
    rest = copy.deepcopy(module)
    if (lookup := function(rest, _LOOKUP)) is not None:
        lookup.body = [ast.Pass()]
    return rest


PATCH = Patch(
    id="KV011",
    distribution="lmcache",
    targets=(
        Target(CLIENT, "<0.4", _send_list(_ENCODED)),
        Target(CLIENT, ">=0.4", _send_list(_SENT)),
    ),
    versions=">=0.3.10,<0.4.5.dev0",
    why="With blending LMCache sends a request's tokens themselves to its workers, since 0.3.10 as "
    "vLLM's ConstantList, which its encoder refuses: the first request kills the engine.",
    how="Makes a list of the tokens right before they are handed over.",
    upstream="https://github.com/LMCache/LMCache/blob/v0.4.5/"
    "lmcache/v1/lookup_client/lmcache_lookup_client.py",
    retire_when="Support for LMCache 0.4.4 and older ends; 0.4.5 makes a list itself.",
    post_condition=sends_list,
    faithful=released_but_for_lookup,
    cures=("C",),
    proved="run on a CPU: vLLM 0.11.0 with LMCache 0.3.10, vLLM 0.32.0 with LMCache 0.3.13",
)


def _client(sent: str) -> str:
    lines = "\n".join(f"            {line}" for line in sent.strip("\n").split("\n"))
    return f"""
class LMCacheLookupClient:
    def lookup(self, token_ids, lookup_id, request_configs_str):
        if self.enable_blending:
{lines}
        return self.ask(lookup_id)
"""


EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "encodes a list",
        "0.3.13",
        _client(_ENCODED),
        after=_client(_LISTED + _ENCODED),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "sends a list",
        "0.4.4",
        _client(_SENT),
        after=_client(_LISTED + _SENT),
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves releases alone that send what vLLM holds as a list",
        "0.3.9.post2",
        _client(_ENCODED),
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.4.4",
        _client("token_ids = list(token_ids)\n" + _SENT),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the tokens go another way",
        "0.4.4",
        _client("msg_buf = [lookup_id, token_ids]"),
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
