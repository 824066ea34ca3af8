"""What vLLM's connector and LMCache's ask of each other."""

from __future__ import annotations

import pytest
from kvpatch.contract import (
    Broken,
    connector_class,
    failures,
    failures_of_requests,
    failures_of_start,
    meetings,
    unloadable,
)
from pair_stand_in import (
    ADAPTER,
    CONNECTOR,
    MODELS,
    POSITIONS,
    REQUEST,
    UTILS,
    codebase,
    pair,
    replaced,
)


def test_a_pair_that_fits_breaks_on_nothing() -> None:
    assert list(failures_of_start(pair())) == []
    assert list(failures_of_requests(pair())) == []


def test_imports_come_before_anything_else_and_end_the_start() -> None:
    two = replaced(ADAPTER, "role, parent):", "role):")
    assert [item.kind for item in failures_of_start(pair(two))] == ["call"]
    assert [item.kind for item in failures_of_start(pair({**two, UTILS: ""}))] == ["import"]


def test_an_import_inside_a_function_that_the_constructor_runs_is_a_failure_of_the_start() -> None:
    inside = replaced(
        ADAPTER,
        "    def _start(self, config):\n",
        "    def _start(self, config):\n        import vllm.gone\n",
    )
    (broken,) = failures_of_start(pair(inside))
    assert (broken.kind, broken.why) == ("import", "there is no module vllm.gone")
    elsewhere = replaced(
        ADAPTER,
        "    def _from_context(",
        "    def never(self):\n        import vllm.gone\n\n    def _from_context(",
    )
    assert list(failures_of_start(pair(elsewhere))) == []


def test_what_the_factory_that_is_passed_on_imports_is_a_failure_of_the_start() -> None:
    built = replaced(
        ADAPTER,
        "    def _start(self, config):\n",
        "    def _start(self, config):\n        Manager(Factory())\n",
    )
    text = (
        f"{built[ADAPTER]}\n\nclass Base:\n    def make(self): pass\n\n\n"
        "class Factory(Base):\n    def make(self):\n        import vllm.gone\n\n\n"
        "class Manager:\n    def __init__(self, factory: Base):\n        RUN\n"
    )
    (broken,) = failures_of_start(pair({ADAPTER: text.replace("RUN", "factory.make()")}))
    assert (broken.kind, broken.why) == ("import", "there is no module vllm.gone")
    assert list(failures_of_start(pair({ADAPTER: text.replace("RUN", "pass")}))) == []


IMPL = "class LMCacheConnectorV1Impl"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        # What vLLM lacks is not LMCache's, and hangs on the vLLM.
        ({UTILS: ""}, ""),
        ({ADAPTER: None}, "there is no module lmcache.integration"),
        (replaced(ADAPTER, IMPL, f"{IMPL}2"), "has no LMCacheConnectorV1Impl"),
        ({MODELS: ""}, f"lmcache.v1.compute.models.utils has no Builder ({ADAPTER}:"),
        ({MODELS: None}, "there is no module lmcache.v1.compute.models"),
    ],
)
def test_what_lmcache_lacks_itself_is_known_without_a_vllm(
    changes: dict[str, str | None], why: str
) -> None:
    told = unloadable(codebase("lmcache", changes))
    assert why in told
    assert bool(why) is bool(told)


def test_a_call_with_arguments_that_lmcache_does_not_take_is_broken() -> None:
    fewer = replaced(
        ADAPTER,
        'get_num_new_matched_tokens(self, request: "Request", computed: int)',
        'get_num_new_matched_tokens(self, request: "Request")',
    )
    fewer[ADAPTER] = str(fewer[ADAPTER]).replace("+ request.priority", "")
    (broken,) = failures_of_requests(pair(fewer))
    assert "gets 2" in broken.why
    assert broken.path == CONNECTOR


def test_attributes_are_looked_up_through_the_annotation_and_what_is_asked_first_is_left() -> None:
    (broken,) = failures_of_requests(
        pair(replaced(REQUEST, "        self.priority = priority\n", "        pass\n"))
    )
    assert (broken.kind, broken.why) == ("attribute", "vLLM's Request has no priority")
    unknown = replaced(ADAPTER, 'request: "Request", computed', "request, computed")
    gone = replaced(REQUEST, "        self.priority = priority\n", "        pass\n")
    assert list(failures_of_requests(pair({**unknown, **gone}))) == []


def test_a_vllm_without_the_connector_breaks_on_that() -> None:
    (broken,) = failures_of_start(pair({CONNECTOR: None}))
    assert connector_class()[0] in broken.why


def test_calls_of_the_other_package_are_held_against_its_signatures() -> None:
    found = pair(replaced(POSITIONS, "is_neox_style=is_neox_style\n", "gone=1\n"))
    place = found.own.resolve("lmcache.v1.compute.positional_encoding", "get_fused_rope")
    assert place is not None
    (meeting,) = meetings(found, [place])
    (failure,) = failures(found, meeting)
    assert (failure.name, failure.why) == ("get_rope", "vLLM's get_rope has no parameter gone")


LOOKUP = "lmcache/v1/lookup_client/lmcache_lookup_client.py"
SENDING = """
class LMCacheLookupClient:
    def lookup(self, token_ids, lookup_id):
        if self.enable_blending:
            return self.encoder.encode(token_ids)
        return self.encoder.encode(lookup_id)
"""


def tokens(
    made: str = "ConstantList(self._all)", asked: str = "request.all_token_ids", sent: str = SENDING
) -> list[Broken]:
    request = "        self.priority = priority\n"
    adapter = 'return getattr(request, "age", 0)'
    changes = {
        **replaced(REQUEST, request, f"{request}        self.all_token_ids = {made}\n"),
        **replaced(ADAPTER, adapter, f"self.lookup.lookup({asked}, 1)\n        {adapter}"),
        LOOKUP: sent,
    }
    return [b for b in failures_of_requests(pair(changes)) if b.path == LOOKUP]


def test_tokens_that_the_lookup_cant_encode_are_a_break() -> None:
    (broken,) = tokens()
    assert (broken.kind, broken.line) == ("call", 5)
    assert "ConstantList" in broken.why


SENDING_ON = """
class LMCacheLookupClient:
    def lookup(self, token_ids, lookup_id):
        ids = token_ids
        return self.transport.send_and_recv_all([ids, lookup_id])
"""


def test_so_are_those_that_it_hands_to_a_transport_as_they_are() -> None:
    (broken,) = tokens(sent=SENDING_ON)
    assert broken.line == 5
    assert tokens(sent=SENDING_ON.replace("= token_ids", "= list(token_ids)")) == []


@pytest.mark.parametrize(
    "change",
    [
        {"made": "list(self._all)"},
        {"asked": "request.prompt_token_ids"},
        {"sent": SENDING.replace("encode(token_ids)", "encode(list(token_ids))")},
        {"sent": SENDING.replace("LMCacheLookupClient", "Renamed")},
    ],
)
def test_tokens_as_a_list_are_none(change: dict[str, str]) -> None:
    assert tokens(**change) == []
