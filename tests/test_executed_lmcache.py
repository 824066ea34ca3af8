"""What the patches make of LMCache's own functions, run from the patched files of real releases."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from kvpatch.blending import find
from kvpatch.diagnosis import State
from kvpatch.model_checks import check_layers_check
from kvpatch.model_config import parse_model
from lmcache_config import schema_of
from lmcache_files import executed, patched_text, stock_files
from packaging.version import Version
from releases import lmcache_releases, whole_release
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

RELEASES = ["0.3.3", "0.3.9.post2", "0.4.4", "0.5.3", "0.5.6"]
CHECKED = [
    one.version for one in lmcache_releases() if "blend_check_layers" in schema_of(one.version).keys
]
DATABASE = "lmcache/v1/token_database.py"
ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"
CONNECTORS = "lmcache/v1/gpu_connector/gpu_connectors.py"


# Separators


class Tokenizer:
    """One token a character, and a first one where the tokenizer has a BOS token."""

    def __init__(self, bos: bool) -> None:
        self.bos = bos

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        first = [1] if self.bos and add_special_tokens else []
        return [*first, *(ord(letter) for letter in text)]


def database(text: str, bos: bool = True, separator: str = "##") -> Any:
    """LMCache's SegmentTokenDatabase of that text, with a stand-in tokenizer and hash."""

    class TokenDatabase:
        def __init__(self, *_args: Any) -> None:
            pass

        def _hash_tokens(self, tokens: Any) -> tuple[int, ...]:
            return tuple(tokens.tolist())

        def _make_key_by_hash(self, found: Any, _configs: Any = None) -> Any:
            return found

    loader = SimpleNamespace(from_pretrained=lambda _name: Tokenizer(bos))
    space = executed(
        text,
        ["SegmentTokenDatabase"],
        torch=torch,
        TokenDatabase=TokenDatabase,
        AutoTokenizer=loader,
    )
    config = SimpleNamespace(blend_special_str=separator)
    return space["SegmentTokenDatabase"](config, SimpleNamespace(model_name="m"))


def segments(found: Any, prompt: str) -> list[tuple[int, int, str]]:
    """The segments of a prompt, as start, end and text."""
    tokens = torch.tensor([ord(letter) for letter in prompt])
    return [
        (start, end, "".join(map(chr, key))) for start, end, key in found.process_tokens(tokens)
    ]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("release", RELEASES)
def test_a_prompt_is_split_at_the_whole_separator(release: str, bos: bool) -> None:
    found = database(patched_text(release, DATABASE), bos)
    assert found.sep_tokens.tolist() == [ord("#"), ord("#")]
    assert segments(found, "ab##cde##f") == [(0, 2, "ab"), (4, 7, "cde"), (9, 10, "f")]


@pytest.mark.parametrize("release", RELEASES)
def test_as_released_a_tokenizer_without_bos_loses_a_token(release: str) -> None:
    stock = stock_files(release)[DATABASE].decode()
    assert database(stock, bos=False).sep_tokens.tolist() == [ord("#")]


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("##ab##c", [(2, 4, "ab"), (6, 7, "c")]),
        ("ab##", [(0, 2, "ab")]),
        ("ab####c", [(0, 2, "ab"), (6, 7, "c")]),
        ("ab###c", [(0, 2, "ab"), (4, 6, "#c")]),
        ("##", []),
        ("a", [(0, 1, "a")]),
        ("abc", [(0, 3, "abc")]),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_every_segment_has_tokens_and_its_own_place(
    release: str, prompt: str, wanted: list[tuple[int, int, str]]
) -> None:
    assert segments(database(patched_text(release, DATABASE)), prompt) == wanted


@pytest.mark.parametrize("release", RELEASES)
def test_an_empty_separator_is_refused_at_start(release: str) -> None:
    with pytest.raises(ValueError, match="blend_special_str is no token"):
        database(patched_text(release, DATABASE), separator="")


def first(starts: list[int], **given: int) -> int:
    """Where the buffer starts, where chunks have 16 tokens."""
    space = executed(patched_text("0.5.6", CONNECTORS), ["_kvpatch_first"])
    engine = SimpleNamespace(config=SimpleNamespace(chunk_size=16))
    model = SimpleNamespace(blender=SimpleNamespace(cache_engine=engine))
    answer: int = space["_kvpatch_first"](SimpleNamespace(lmc_model=model), starts, given)
    return answer


@pytest.mark.parametrize("starts", [[0, 9], [3, 9], [20, 90], [640, 700]])
def test_the_buffer_starts_with_the_prompt_however_long_its_separators(starts: list[int]) -> None:
    assert first(starts, vllm_cached_tokens=0) == first(starts, vllm_cached_tokens=15) == 0


def test_the_buffer_starts_with_what_is_left_where_vllm_holds_whole_chunks() -> None:
    assert first([20, 90], vllm_cached_tokens=16) == 20
    assert first([64, 90], vllm_cached_tokens=70) == 64


def test_where_nothing_tells_what_vllm_holds_a_late_start_is_taken_for_it() -> None:
    assert (first([3, 9]), first([20, 90])) == (0, 20)


@pytest.mark.parametrize("release", [one.version for one in lmcache_releases()])
def test_what_vllm_holds_reaches_the_buffer_since_0_4_2(release: str) -> None:
    if not Version("0.3.3") <= Version(release) < Version("0.5.7.dev0"):
        return
    adapter = ast.parse(patched_text(release, ADAPTER))
    calls = find(adapter, "self.blender.blend(*___)")
    assert len(calls) == 1
    told = "vllm_cached_tokens" in ast.unparse(calls[0])
    assert told is (Version(Version(release).base_version) >= Version("0.4.2"))


# Guard rails

WHOLE = {
    "enable_blending": True,
    "use_layerwise": True,
    "blend_check_layers": [1],
    "blend_recompute_ratios": [0.15],
    "blend_special_str": " # # ",
}


ALONE = SimpleNamespace(
    parallel_config=SimpleNamespace(pipeline_parallel_size=1, decode_context_parallel_size=1),
    lora_config=None,
    cache_config=SimpleNamespace(enable_prefix_caching=False),
    model_config=SimpleNamespace(max_model_len=2048),
    kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}),
)


def vllm_with(**other: Any) -> SimpleNamespace:
    """vLLM's configuration, with other parts than fit blending."""
    return SimpleNamespace(**{**vars(ALONE), **other})


def check(release: str, vllm: SimpleNamespace = ALONE, **values: Any) -> None:
    name = "_kvpatch_check_blending"
    executed(patched_text(release, ADAPTER), [name])[name](SimpleNamespace(**values), vllm)


@pytest.mark.parametrize("release", RELEASES)
def test_a_whole_configuration_passes(release: str) -> None:
    check(release, **WHOLE)


@pytest.mark.parametrize("key", [key for key in WHOLE if key != "enable_blending"])
@pytest.mark.parametrize("empty", [None, False, [], ""])
def test_a_configuration_that_lacks_something_stops_with_a_sentence(key: str, empty: Any) -> None:
    with pytest.raises(ValueError, match=f"enable_blending but no {key}: ") as caught:
        check("0.5.6", **{**WHOLE, key: empty})
    assert "\n" not in str(caught.value)


def test_without_blending_nothing_is_looked_at() -> None:
    check("0.5.6", SimpleNamespace(), enable_blending=False)


@pytest.mark.parametrize("key", ["pipeline_parallel_size", "decode_context_parallel_size"])
def test_blending_stops_where_ranks_share_layers_or_tokens(key: str) -> None:
    several = vllm_with(parallel_config=SimpleNamespace(**{key: 2}))
    with pytest.raises(ValueError, match=f"a {key} of 2: "):
        check("0.5.6", several, **WHOLE)
    # A vLLM that has no such size.
    check("0.5.6", vllm_with(parallel_config=SimpleNamespace()), **WHOLE)


def test_blending_stops_with_adapters() -> None:
    with pytest.raises(ValueError, match="does not go with LoRA"):
        check("0.5.6", vllm_with(lora_config=object()), **WHOLE)


@pytest.mark.parametrize("release", RELEASES)
def test_blending_stops_with_prefix_caching(release: str) -> None:
    def cached(on: object) -> SimpleNamespace:
        return vllm_with(cache_config=SimpleNamespace(enable_prefix_caching=on))

    with pytest.raises(ValueError, match="Start vLLM with --no-enable-prefix-caching, or "):
        check(release, cached(True), **WHOLE)
    # As a vLLM has it that leaves it to others, and makes nothing of it.
    check(release, cached(None), **WHOLE)
    check(release, cached(True), enable_blending=False)


@pytest.mark.parametrize("release", RELEASES)
def test_blending_stops_where_every_layer_has_a_window_that_prompts_are_longer_than(
    release: str,
) -> None:
    def windowed(window: object) -> SimpleNamespace:
        cache = SimpleNamespace(enable_prefix_caching=False, sliding_window=window)
        return vllm_with(cache_config=cache)

    with pytest.raises(ValueError, match="Start vLLM with --disable-sliding-window, "):
        check(release, windowed(2047), **WHOLE)
    for window in (None, 2048, 4096):
        check(release, windowed(window), **WHOLE)
    check(release, windowed(96), enable_blending=False)


@pytest.mark.parametrize("release", RELEASES)
def test_blending_stops_where_loads_are_capped(release: str) -> None:
    def capped(extra: object) -> SimpleNamespace:
        return vllm_with(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))

    with pytest.raises(ValueError, match="Take it out of kv_connector_extra_config, or "):
        check(release, capped({"lmcache.max_tokens_per_load": "128"}), **WHOLE)
    for extra in ({"lmcache.max_tokens_per_load": 0}, {"use_layerwise": True}, {}, None):
        check(release, capped(extra), **WHOLE)


def test_keys_that_a_release_does_not_have_are_not_asked_for() -> None:
    check("0.3.3", enable_blending=True, use_layerwise=True, blend_special_str="#")


# The check layer


def blended(release: str, layers: list[int], ratio: float) -> list[int]:
    """How many tokens of each of four layers the released blender computes anew."""
    (path,) = [
        path
        for path in whole_release("lmcache", release).entries
        if path.endswith("compute/blend/blender.py")
    ]
    text = (whole_release("lmcache", release).read(path) or b"").decode()
    logger = SimpleNamespace(debug=lambda *_: None)
    given = dict.fromkeys(("LMCAttnMetadata", "LMCacheEngineConfig"), object)
    blender_class = executed(text, ["LMCBlender"], torch=torch, logger=logger, **given)[
        "LMCBlender"
    ]
    blender = object.__new__(blender_class)
    kept = [(torch.randn(32, 8), torch.randn(32, 8)) for _ in range(4)]
    before = [keys.clone() for keys, _ in kept]
    attention = SimpleNamespace(rotary_emb=lambda _places, q, k: (q, k))
    inner = SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)] * 4)
    blender.gpu_connector = SimpleNamespace(get_kv=lambda layer: kept[layer])
    blender.layerwise_model = SimpleNamespace(vllm_model=SimpleNamespace(model=inner))
    blender.common_metadata = SimpleNamespace(check_layers=layers, recomp_ratios=[ratio])
    blender.metadata = SimpleNamespace(imp_indices=None, attn_mask=None, positions=None)
    left = 32
    for layer in range(4):
        q, k, v, residual = (torch.randn(left, 8) for _ in range(4))
        chosen = SimpleNamespace(update_from_top_indices=lambda _: None)
        left = len(blender.process_qkv(q, k, v, residual, layer, None, chosen)[0])
    return [int((keys != old).any(1).sum()) for (keys, _), old in zip(kept, before, strict=True)]


@pytest.mark.parametrize("release", CHECKED)
@pytest.mark.parametrize(
    ("layers", "ratio"),
    [
        *(([one], 0.25) for one in (0, 1, 99, -1)),
        *((two, 0.25) for two in ([1, 99], [1, 3], [3, 1], [1, 1])),
        ([1, 3], 1.0),
    ],
)
def test_doctor_says_of_check_layers_what_the_blender_makes_of_them(
    release: str, layers: list[int], ratio: float
) -> None:
    facts = {"num_hidden_layers": 4, "num_attention_heads": 1, "hidden_size": 8}
    model = parse_model({**facts, "max_position_embeddings": 64}, "m")
    row = check_layers_check(model, layers, [ratio])
    assert row is not None
    if "stops at the first blend" in row.reason:
        with pytest.raises(RuntimeError, match="must match the size"):
            blended(release, layers, ratio)
        return
    anew = blended(release, layers, ratio)
    assert (row.state is State.FAIL) is (not any(anew))
    first = next((one for one in sorted(layers) if 0 <= one < 4), 4)
    assert anew == [0] * first + [int(32 * ratio)] * (4 - first)
