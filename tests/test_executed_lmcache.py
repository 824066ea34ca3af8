"""What the patches make of LMCache's own functions, run from the patched files of real releases."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kvpatch.diagnosis import State
from kvpatch.model_checks import check_layers_check
from kvpatch.model_config import parse_model
from lmcache_config import schema_of
from lmcache_files import executed, patched_text, stock_files
from releases import lmcache_releases, whole_release
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

RELEASES = ["0.3.3", "0.3.9.post2", "0.4.4", "0.5.3", "0.5.6"]
GDS_RELEASES = ["0.4.4", "0.4.7", "0.5.0", "0.5.3", "0.5.6"]
CHECKED = [
    one.version for one in lmcache_releases() if "blend_check_layers" in schema_of(one.version).keys
]
DATABASE = "lmcache/v1/token_database.py"
ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"
BACKEND = "lmcache/v1/storage_backend/gds_backend.py"
MANAGER = "lmcache/v1/storage_backend/storage_manager.py"
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


@pytest.mark.parametrize(("starts", "first"), [([0, 9], 0), ([3, 9], 0), ([64, 90], 64)])
def test_the_buffer_starts_with_the_prompt_unless_vllm_holds_whole_chunks(
    starts: list[int], first: int
) -> None:
    space = executed(patched_text("0.5.6", CONNECTORS), ["_kvpatch_first"])
    engine = SimpleNamespace(config=SimpleNamespace(chunk_size=64))
    model = SimpleNamespace(blender=SimpleNamespace(cache_engine=engine))
    assert space["_kvpatch_first"](SimpleNamespace(lmc_model=model), starts) == first


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
)


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
    several = SimpleNamespace(parallel_config=SimpleNamespace(**{key: 2}), lora_config=None)
    with pytest.raises(ValueError, match=f"a {key} of 2: "):
        check("0.5.6", several, **WHOLE)
    # A vLLM that has no such size.
    check("0.5.6", SimpleNamespace(parallel_config=SimpleNamespace(), lora_config=None), **WHOLE)


def test_blending_stops_with_adapters() -> None:
    adapters = SimpleNamespace(parallel_config=SimpleNamespace(), lora_config=object())
    with pytest.raises(ValueError, match="does not go with LoRA"):
        check("0.5.6", adapters, **WHOLE)


def test_keys_that_a_release_does_not_have_are_not_asked_for() -> None:
    check("0.3.3", enable_blending=True, use_layerwise=True, blend_special_str="#")


# GDS


class VersionError(Exception):
    """LMCache's ``UnsupportedMetadataVersion``."""


def gds(release: str) -> dict[str, Any]:
    """The functions of the patched back end that need neither cuFile nor a GPU."""
    names = ["pack_metadata", "unpack_metadata", "_kvpatch_span", "_kvpatch_positions"]
    fmt = SimpleNamespace(value=7)
    return executed(
        patched_text(release, BACKEND),
        names,
        torch=torch,
        json=json,
        struct=struct,
        MemoryFormat=lambda value: (value, fmt)[1],
        UnsupportedMetadataVersion=VersionError,
        torch_dtypes={torch.bfloat16: "BF16"},
        torch_dtypes_inverse={"BF16": torch.bfloat16},
        _METADATA_MAX_SIZE=4096,
    )


def backend_class(release: str) -> Any:
    """The real class with its patched methods, stripped of what needs the rest of LMCache."""
    import ast

    module = ast.parse(patched_text(release, BACKEND))
    [owner] = [n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "GdsBackend"]
    kept = ("batched_get_non_blocking", "_kvpatch_positions_of", "insert_key")
    owner.body = [node for node in owner.body if getattr(node, "name", "") in kept]
    owner.bases, owner.decorator_list = [], []
    helpers = gds(release)
    space = {**helpers, "asyncio": asyncio, "torch": torch, "DiskCacheMetadata": Entry}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, owner], []), "patched", "exec"), space)
    return space["GdsBackend"]


class Entry:
    """LMCache's ``DiskCacheMetadata``."""

    def __init__(
        self, path: str, size: int, shape: Any, dtype: Any, positions: Any, fmt: Any
    ) -> None:
        self.path, self.size, self.shape, self.dtype, self.fmt = path, size, shape, dtype, fmt
        self.cached_positions = positions


class Chunk:
    """A memory object that counts its references."""

    def __init__(self, positions: Any = None) -> None:
        self.references = 1
        self.tensor = torch.zeros(2, 3, 4)
        self.meta = self.metadata = SimpleNamespace(
            cached_positions=positions, shape=(2, 3, 4), dtype=torch.float32, fmt=7
        )

    def ref_count_down(self) -> None:
        self.references -= 1

    def get_physical_size(self) -> int:
        return 96

    get_shape = get_dtype = get_physical_size


@pytest.mark.parametrize("release", GDS_RELEASES)
def test_positions_come_back_from_the_header_and_other_readers_see_a_header(release: str) -> None:
    space = gds(release)
    span = space["_kvpatch_span"](torch.arange(300, 420))
    tensor = torch.zeros(2, 120, 8, dtype=torch.bfloat16)
    fmt = SimpleNamespace(value=7)
    written = space["pack_metadata"](tensor, fmt, lmcache_version="1", cached_positions=span)
    assert len(written) == 4096
    shape, dtype, size, _, more = space["unpack_metadata"](written)
    assert (shape, dtype, size) == (tensor.shape, torch.bfloat16, tensor.nbytes)
    assert more["lmcache_version"] == "1"
    blending = SimpleNamespace(enable_blending=True)
    assert space["_kvpatch_positions"](blending, more["cached_positions"]) == range(300, 420)


@pytest.mark.parametrize("span", [None, "", "7", "a:b", "1:2:3"])
@pytest.mark.parametrize("release", GDS_RELEASES)
def test_a_file_without_positions_is_none_while_blending_and_one_without(
    release: str, span: str | None
) -> None:
    read = gds(release)["_kvpatch_positions"]
    with pytest.raises(VersionError):
        read(SimpleNamespace(enable_blending=True), span)
    assert read(SimpleNamespace(enable_blending=False), span) is None


def test_positions_with_gaps_have_no_span() -> None:
    span = gds("0.5.6")["_kvpatch_span"]
    assert span(torch.tensor([3, 5, 6])) is None
    assert span(torch.tensor([], dtype=torch.int64)) is None
    assert span(None) is None


def _backend(release: str, chunks: list[Chunk | None]) -> Any:
    backend = backend_class(release)()
    backend.config = SimpleNamespace(enable_blending=True)
    backend.hot_lock, backend.hot_cache = threading.Lock(), {}
    backend.batched_get_blocking = lambda _keys: chunks
    backend._key_to_path = lambda key: (f"/{key}", "", "", "")
    return backend


@pytest.mark.parametrize("release", GDS_RELEASES)
def test_a_stored_chunk_is_known_with_its_positions(release: str) -> None:
    backend = _backend(release, [])
    backend.insert_key("k", Chunk(torch.arange(5, 8)))
    assert backend._kvpatch_positions_of("k").tolist() == [5, 6, 7]
    assert backend._kvpatch_positions_of("gone") is None


@pytest.mark.parametrize("release", GDS_RELEASES)
def test_the_chunks_of_a_layer_are_loaded_together(release: str) -> None:
    chunks: list[Chunk | None] = [Chunk(), Chunk()]
    backend = _backend(release, chunks)
    assert asyncio.run(backend.batched_get_non_blocking("id", ["a", "b"])) == chunks


@pytest.mark.parametrize("release", GDS_RELEASES)
def test_a_lost_chunk_fails_the_load_and_gives_the_others_back(release: str) -> None:
    kept = Chunk()
    backend = _backend(release, [kept, None])
    with pytest.raises(RuntimeError, match="GDS could not load 1 of 2 chunks, the first is b"):
        asyncio.run(backend.batched_get_non_blocking("id", ["a", "b"]))
    assert kept.references == 0


@pytest.mark.parametrize("release", GDS_RELEASES)
def test_copied_chunks_keep_their_keys_and_positions_where_another_is_stored(release: str) -> None:
    space = executed(
        patched_text(release, MANAGER),
        ["allocate_and_copy_objects"],
        torch=torch,
        torch_dev=SimpleNamespace(stream=lambda _stream: threading.Lock()),
    )
    space["torch"] = SimpleNamespace(cuda=SimpleNamespace(stream=lambda _s: threading.Lock()))
    sources = [Chunk(torch.arange(n, n + 3)) for n in range(3)]
    for number, chunk in enumerate(sources):
        chunk.tensor += number
    allocator = SimpleNamespace(
        contains=lambda key: key == "a", allocate=lambda *_args, **_kwargs: Chunk()
    )
    keys, copies = space["allocate_and_copy_objects"](allocator, ["a", "b", "c"], sources, None)
    assert list(keys) == ["b", "c"]
    assert [int(copy.tensor.max()) for copy in copies] == [1, 2]
    assert [copy.meta.cached_positions.tolist() for copy in copies] == [[1, 2, 3], [2, 3, 4]]


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
