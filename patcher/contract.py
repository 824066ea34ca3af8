"""What vLLM asks of LMCache's connector, and that of vLLM's objects, held against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .codebase import Codebase, Place
from .needs import Failure, Pair
from .reach import Reached, called, plain_name, reached, usual
from .symbols import Call, Function, Import, Read

ADAPTER = "lmcache.integration.vllm.vllm_v1_adapter"
IMPL = "LMCacheConnectorV1Impl"
COMPUTE = "lmcache/v1/compute/"
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
    for meeting in meetings(pair, [place]):
        if not meeting.computes:
            yield from _broken(pair, meeting)


def unloadable(lmcache: Codebase) -> str:
    """Why no vLLM can import LMCache's side of the connector; empty where its own files do it.

    What it imports of vLLM is taken to be there, for that differs from release to release.
    """
    vllm = Codebase("vllm", lambda _: None, opaque=lambda _: True)
    asked = Import(1, ADAPTER, 0, ((IMPL, IMPL),))
    if (failure := Pair(vllm, lmcache, deep=False).run(_CONNECTOR, (asked,))) is not None:
        return failure.why
    if (failure := Pair(lmcache, vllm).load(ADAPTER)) is not None:
        return f"{failure.why} ({failure.path}:{failure.line})"
    return ""


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
    begun = {(m.item.module, m.item.name) for m in meetings(pair, [place])}
    unless = _NOT_REGISTERED if registered else None
    for meeting in meetings(pair, list(asked.values()), unless=unless):
        if not meeting.computes and (meeting.item.module, meeting.item.name) not in begun:
            yield from _broken(pair, meeting)
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


@dataclass(frozen=True, eq=False)
class Meeting:
    """A function that runs, with what it asks of the other package.

    ``calls`` go there by a plain name; ``reads`` are attributes of what its annotations say is the
    other's. ``computes`` tells LMCache's blender from the rest.
    """

    item: Reached
    path: str
    calls: tuple[tuple[Call, Place], ...]
    reads: tuple[tuple[Read, str, Place], ...]

    @property
    def computes(self) -> bool:
        """Whether it is the blender's own."""
        return self.path.startswith(COMPUTE)


def meetings(
    pair: Pair, start: Sequence[Place], *, unless: str | None = None
) -> tuple[Meeting, ...]:
    """Those of the functions that are :func:`~kvpatch.reach.reached` that the other package meets.

    The others do the same whatever that package is.
    """
    key = ("meetings", tuple((place.module, place.name) for place in start), unless)
    found = reached(pair.own, start, unless=unless)
    return pair.own.once(key, lambda: tuple(_meetings(pair, found)))


def _meetings(pair: Pair, items: Sequence[Reached]) -> Iterator[Meeting]:
    for item in items:
        path = pair.own.path(item.module)
        found = Meeting(item, path, tuple(_calls_out(pair, item)), tuple(_reads_out(pair, item)))
        if found.calls or found.reads or pair.asks(item) or pair.start(item) is not None:
            yield found


def failures(pair: Pair, meeting: Meeting) -> Iterator[Failure]:
    """What fails of a function: an import inside it, and the calls whose signatures refuse them."""
    failure = pair.start(meeting.item)
    if failure is not None:
        yield failure
    yield from _call_failures(pair, meeting)


def _broken(pair: Pair, meeting: Meeting) -> Iterator[Broken]:
    failure = pair.start(meeting.item)
    # What only the blender loads is the blender's failure.
    if failure is not None and not failure.path.startswith(COMPUTE):
        yield Broken("import", failure.path, failure.line, failure.why)
    for failure in _call_failures(pair, meeting):
        yield Broken("call", failure.path, failure.line, failure.why)
    for read, kind, target in meeting.reads:
        members = _attributes(pair, target)
        if members is not None and read.name not in members:
            yield Broken("attribute", meeting.path, read.line, f"vLLM's {kind} has no {read.name}")


def _call_failures(pair: Pair, meeting: Meeting) -> Iterator[Failure]:
    for call, target in meeting.calls:
        real = pair.other.resolve(target.module, target.name)
        function = pair.other.function_at(real) if real else None
        if real is None or function is None:
            continue
        why = function.signature.refuses(call, bound=pair.other.class_at(real) is not None)
        if why is not None:
            why = f"vLLM's {real.name} {why}"
            yield Failure(meeting.path, call.line, real.module, real.name, why)


def _calls_out(pair: Pair, item: Reached) -> Iterator[tuple[Call, Place]]:
    """The calls of a function that go to the other package by a plain name."""
    for call in item.function.calls:
        target = called(pair.own, item, call) if all(map(usual, call.when)) else None
        if target is not None and pair.other.owns(target.module) and "." not in target.name:
            yield call, target


def _reads_out(pair: Pair, item: Reached) -> Iterator[tuple[Read, str, Place]]:
    """The attributes that a function reads of what its annotations say is the other package's."""
    for read in item.function.reads:
        kind = plain_name(item.function.annotations.get(read.owner, ""))
        if kind and not read.guarded and not read.name.startswith("__"):
            target = pair.own.follow(item.module, kind, typing=True)
            if target is not None and pair.other.owns(target.module):
                yield read, kind, target


def _attributes(pair: Pair, target: Place) -> Mapping[str, Place] | None:
    """The attributes of a class of the other package; None where they can't all be told."""
    real = pair.other.resolve(target.module, target.name)
    members = pair.other.members(real) if real and pair.other.class_at(real) else None
    return None if members is None or "*" in members else members
