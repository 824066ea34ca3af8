"""What vLLM asks of LMCache's connector, and that of vLLM's objects, held against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .codebase import Codebase, Place
from .needs import Failure, Pair, Reached, called, reached, usual
from .symbols import Call, Function, Read

ADAPTER = "lmcache.integration.vllm.vllm_v1_adapter"
IMPL = "LMCacheConnectorV1Impl"
_COMPUTE = "lmcache/v1/compute/"
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector"
_CLASS = "LMCacheConnectorV1"
_ENGINE = "self._lmcache_engine."
_REQUEST = "vllm.v1.request"
_LOOKUP = "lmcache.v1.lookup_client.lmcache_lookup_client"
_ALL_TOKENS = ("request", "all_token_ids")
_NOT_REGISTERED = "len(self.kv_caches) == 0"


@dataclass(frozen=True)
class Broken:
    """One thing that the connector's contract breaks on: ``kind`` is import, call or attribute."""

    kind: str
    path: str
    line: int
    why: str


def connector_class() -> tuple[str, str]:
    """Module and name of vLLM's connector for LMCache."""
    return _CONNECTOR, _CLASS


def failures_of_start(pair: Pair) -> Iterator[Broken]:
    """What fails when vLLM imports and builds the connector, blending left out; imports first.

    Args:
        pair: LMCache's code beside vLLM's.
    """
    vllm, lmcache = pair.other, pair.own
    shallow = Pair(vllm, lmcache, deep=False)
    facts = vllm.module(_CONNECTOR)
    if facts is None:
        yield Broken("import", vllm.path(_CONNECTOR), 1, f"this vLLM has no {_CONNECTOR}")
        return
    maker = facts.functions.get(f"{_CLASS}.__init__")
    failure = shallow.run(_CONNECTOR, facts.steps)
    failure = failure or shallow.run(_CONNECTOR, maker.steps if maker else ())
    failure = failure or pair.load(ADAPTER)
    if failure is not None:
        yield Broken("import", failure.path, failure.line, failure.why)
        return
    place = lmcache.resolve(ADAPTER, IMPL)
    if place is None or maker is None:
        return
    yield from _constructor(lmcache, vllm, maker, place)
    for item in reached(lmcache, [place]):
        path = lmcache.path(item.module)
        if path.startswith(_COMPUTE):
            continue
        failure = pair.start(item)
        # What only the blender loads is the blender's failure.
        if failure is not None and not failure.path.startswith(_COMPUTE):
            yield Broken("import", failure.path, failure.line, failure.why)
        yield from _calls_and_reads(pair, item)


def failures_of_requests(pair: Pair) -> Iterator[Broken]:
    """What fails at the first request: methods that are not there, calls and attributes."""
    vllm, lmcache = pair.other, pair.own
    facts = vllm.module(_CONNECTOR)
    place = lmcache.resolve(ADAPTER, IMPL)
    members = lmcache.members(place) if place else None
    if facts is None or place is None or members is None:
        return
    asked: dict[str, Place] = {}
    for name, function in facts.functions.items():
        if not name.startswith(f"{_CLASS}."):
            continue
        guarded = {read.name for read in function.reads if read.guarded}
        for call in function.calls:
            method = call.callee.removeprefix(_ENGINE)
            if method == call.callee or "." in method or method in guarded:
                continue
            found = members.get(method)
            if found is None:
                if "*" not in members:
                    why = f"vLLM calls {method}, and LMCache's {IMPL} has no such method"
                    yield Broken("call", vllm.path(_CONNECTOR), call.line, why)
                continue
            asked[method] = found
            target = lmcache.function_at(found)
            why_not = target.signature.refuses(call, bound=True) if target else None
            if why_not is not None:
                why = f"vLLM calls {method}, and LMCache's {why_not}"
                yield Broken("call", vllm.path(_CONNECTOR), call.line, why)
    registered = _registers_caches(facts.functions, members)
    seen: set[tuple[str, str]] = {(i.module, i.name) for i in reached(lmcache, [place])}
    unless = _NOT_REGISTERED if registered else None
    for item in reached(lmcache, list(asked.values()), unless=unless):
        if (item.module, item.name) in seen or lmcache.path(item.module).startswith(_COMPUTE):
            continue
        failure = pair.start(item)
        if failure is not None and not failure.path.startswith(_COMPUTE):
            yield Broken("import", failure.path, failure.line, failure.why)
        yield from _calls_and_reads(pair, item)
    yield from _tokens_that_cant_be_sent(pair)


def _tokens_that_cant_be_sent(pair: Pair) -> Iterator[Broken]:
    """With blending LMCache's scheduler side sends the tokens themselves to its worker side.

    Its encoder knows lists and none of vLLM's ``ConstantList``, which ``Request.all_token_ids`` is.
    """
    vllm, lmcache = pair.other, pair.own
    request = vllm.module(_REQUEST)
    adapter, client = lmcache.module(ADAPTER), lmcache.module(_LOOKUP)
    if request is None or adapter is None or client is None:
        return
    made = request.functions.get("Request.__init__")
    asks = adapter.functions.get(f"{IMPL}.get_num_new_matched_tokens")
    sends = client.functions.get("LMCacheLookupClient.lookup")
    if made is None or asks is None or sends is None:
        return
    constant = any(call.callee == "ConstantList" for call in made.calls)
    if not constant or not any((r.owner, r.name) == _ALL_TOKENS for r in asks.reads):
        return
    if any(call.callee == "list" and call.arguments == ("token_ids",) for call in sends.calls):
        return
    for call in sends.calls:
        encoded = call.callee == "self.encoder.encode" and "token_ids" in call.arguments
        if encoded or call.callee == "self.transport.send_and_recv_all":
            why = "LMCache sends vLLM's Request.all_token_ids, a ConstantList that msgpack refuses"
            yield Broken("call", lmcache.path(_LOOKUP), call.line, why)


def _registers_caches(functions: Mapping[str, Function], members: Mapping[str, Place]) -> bool:
    forwarded = functions.get(f"{_CLASS}.register_kv_caches")
    return forwarded is not None and "register_kv_caches" in members


def _constructor(
    lmcache: Codebase, vllm: Codebase, maker: Function, place: Place
) -> Iterator[Broken]:
    target = lmcache.function_at(place)
    for call in maker.calls:
        if target is not None and call.callee in ("cls", IMPL):
            why_not = target.signature.refuses(call, bound=True)
            if why_not is not None:
                why = f"vLLM builds LMCache's {IMPL}, which {why_not}"
                yield Broken("call", vllm.path(_CONNECTOR), call.line, why)


def call_failures(pair: Pair, item: Reached) -> Iterator[Failure]:
    """The calls of a function that the other package's signatures refuse."""
    path = pair.own.path(item.module)
    key = ("calls out", item.module, item.name)
    for call, target in pair.own.once(key, lambda: tuple(_calls_out(pair, item))):
        real = pair.other.resolve(target.module, target.name)
        function = pair.other.function_at(real) if real else None
        if real is None or function is None:
            continue
        why = function.signature.refuses(call, bound=pair.other.class_at(real) is not None)
        if why is not None:
            why = f"vLLM's {real.name} {why}"
            yield Failure(path, call.line, real.module, real.name, why)


def _calls_out(pair: Pair, item: Reached) -> Iterator[tuple[Call, Place]]:
    """The calls of a function that go to the other package by a plain name."""
    for call in item.function.calls:
        target = called(pair.own, item, call) if all(map(usual, call.when)) else None
        if target is not None and pair.other.owns(target.module) and "." not in target.name:
            yield call, target


def _calls_and_reads(pair: Pair, item: Reached) -> Iterator[Broken]:
    path = pair.own.path(item.module)
    for failure in call_failures(pair, item):
        yield Broken("call", failure.path, failure.line, failure.why)
    key = ("reads out", item.module, item.name)
    for read, kind, target in pair.own.once(key, lambda: tuple(_reads_out(pair, item))):
        members = _attributes(pair, target)
        if members is not None and read.name not in members:
            yield Broken("attribute", path, read.line, f"vLLM's {kind} has no {read.name}")


def _reads_out(pair: Pair, item: Reached) -> Iterator[tuple[Read, str, Place]]:
    """The attributes that a function reads of what its annotations say is the other package's."""
    for read in item.function.reads:
        kind = _plain_name(item.function.annotations.get(read.owner, ""))
        if kind and not read.guarded and not read.name.startswith("__"):
            target = pair.own.follow(item.module, kind, typing=True)
            if target is not None and pair.other.owns(target.module):
                yield read, kind, target


def _attributes(pair: Pair, target: Place) -> Mapping[str, Place] | None:
    """The attributes of a class of the other package; None where they can't all be told."""
    real = pair.other.resolve(target.module, target.name)
    members = pair.other.members(real) if real and pair.other.class_at(real) else None
    return None if members is None or "*" in members else members


def _plain_name(annotation: str) -> str:
    text = annotation.strip().strip("\"'")
    optional = re.fullmatch(r"Optional\[(.+)\]", text) or re.fullmatch(r"(.+) \| None", text)
    text = optional.group(1).strip("\"'") if optional else text
    return text if re.fullmatch(r"[A-Za-z_][\w.]*", text) else ""
