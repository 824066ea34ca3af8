"""Each letter, derived from a pair in which one thing is changed."""

from __future__ import annotations

import pytest
from kvpatch.letters import Scope, Shape, When, kv_shape
from pair_stand_in import (
    ADAPTER,
    ATTENTION,
    BACKEND,
    BASE,
    CONFIG,
    CONNECTOR,
    FLASH,
    GPU,
    LAYER,
    LLAMA,
    POSITIONS,
    REQUEST,
    ROPE,
    STORAGE,
    UTILS,
    codebase,
    replaced,
    verdict,
)

Changes = dict[str, str | None]
SPECS = "vllm/v1/kv_cache_interface.py"
SHAPE = "(2, num_blocks, block_size, num_kv_heads, head_size)"
SECOND = "(num_blocks, 2, block_size, num_kv_heads, head_size)"
PACKED = "(num_blocks, num_kv_heads, block_size, 2 * head_size)"
BY_LAYER = """
def compute_layer_kv_cache_shape_bytes(spec, num_blocks):
    return (num_blocks, spec.num_heads, spec.states, spec.content_bytes)
"""
HOOK = "def __getattr__(name):\n    if name in NAMES:\n        return 1\n"
FALLBACK = """
try:
    from vllm.attention import Attention
except ImportError:
    from vllm.model_executor.layers.attention.attention import Attention
"""


def of(changes: Changes | None = None) -> list[str]:
    return list(verdict(changes).letters)


def test_a_pair_that_lacks_the_registration_alone_has_the_letter_h_alone() -> None:
    assert of() == ["H"]


# X


def test_a_name_that_left_a_module_is_x_at_engine_start() -> None:
    found = verdict({UTILS: ""}).findings[0]
    assert (found.letter, found.when, found.path) == ("X", When.START, ADAPTER)
    assert found.sentence == "vllm.utils has no cdiv"
    assert found.line == 4


def test_a_connector_of_lmcache_that_moved_is_x_though_the_native_way_is_there() -> None:
    found = verdict({ADAPTER: None}).findings[0]
    assert (found.letter, found.path) == ("X", CONNECTOR)
    assert found.sentence == "there is no module lmcache.integration"


@pytest.mark.parametrize(
    "utils",
    [
        "from .math import cdiv\n",
        "from .math import *\n",
        "NAMES = {'cdiv': 'math'}\n" + HOOK,
        "def __getattr__(name):\n    if name == 'cdiv':\n        return 1\n",
        "try:\n    from .gone import cdiv\nexcept ImportError:\n    def cdiv(a, b): pass\n",
    ],
)
def test_a_name_that_is_there_by_another_way_is_no_letter(utils: str) -> None:
    assert of({UTILS: utils, "vllm/utils/math.py": "def cdiv(a, b):\n    return a\n"}) == ["H"]


@pytest.mark.parametrize(
    "utils",
    [
        "NAMES = {'other': 'math'}\n" + HOOK,
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from .math import cdiv\n",
        "from .math import _cdiv\n",
        "class Utils:\n    def cdiv(self):\n        pass\n",
    ],
)
def test_a_name_that_only_looks_as_if_it_were_there_is_x(utils: str) -> None:
    assert of({UTILS: utils, "vllm/utils/math.py": "def cdiv(a, b):\n    return a\n"})[0] == "X"


# C


def test_a_method_that_vllm_calls_and_lmcache_has_not_is_c_at_the_first_request() -> None:
    calling = replaced(
        CONNECTOR,
        "    def get_block_ids",
        "    def events(self):\n        return self._lmcache_engine.get_kv_events()\n\n"
        "    def get_block_ids",
    )
    found = verdict(calling)
    assert list(found.letters) == ["H", "C"]
    assert found.findings[1].when is When.REQUEST
    assert "get_kv_events" in found.findings[1].sentence


def test_a_method_that_vllm_asks_for_first_may_be_missing() -> None:
    assert "get_block_ids_with_load_errors" not in str(codebase("lmcache").read(ADAPTER))
    assert of() == ["H"]


def test_an_attribute_that_left_vllms_request_is_c() -> None:
    gone = replaced(REQUEST, "        self.priority = priority\n", "        pass\n")
    found = verdict(gone)
    assert list(found.letters) == ["H", "C"]
    assert found.findings[1].sentence == "vllm's Request has no priority".replace("vllm", "vLLM")


def test_an_attribute_read_only_where_caches_are_not_registered_is_no_letter_where_they_are() -> (
    None
):
    assert of() == ["H"]
    old = replaced(
        CONNECTOR, "    def register_kv_caches(self, kv_caches):", "    def other(self, kv_caches):"
    )
    found = verdict(old)
    assert [f.sentence for f in found.findings if f.letter == "C"] == [
        "vLLM's ForwardContext has no virtual_engine"
    ]


def test_a_constructor_that_takes_fewer_arguments_is_c_at_engine_start() -> None:
    two = replaced(
        ADAPTER,
        "def __init__(self, vllm_config, role, parent):",
        "def __init__(self, vllm_config, role):",
    )
    found = verdict(two).findings[0]
    assert (found.letter, found.when) == ("C", When.START)
    assert "takes 2 positional arguments, and gets 3" in found.sentence


# A


def test_an_empty_attention_package_is_a_when_the_blender_is_built() -> None:
    found = verdict({ATTENTION: ""})
    assert list(found.letters) == ["H", "A"]
    assert found.findings[1].when is When.BLENDER
    assert found.findings[1].path == BACKEND


def test_a_fallback_that_is_not_there_either_is_still_a() -> None:
    falling = replaced(BACKEND, "from vllm.attention import Attention\n", FALLBACK)
    assert of({ATTENTION: "", **falling}) == ["H", "A"]


def test_a_fallback_that_is_there_takes_the_letter_away() -> None:
    home = "vllm/model_executor/layers/attention/attention.py"
    falling = replaced(BACKEND, "from vllm.attention import Attention\n", FALLBACK)
    there = {ATTENTION: None, LAYER: None, home: "class Attention:\n    pass\n"}
    assert of({**there, **falling}) == ["H"]


# R


def test_a_keyword_that_get_rope_has_not_is_r() -> None:
    asking = replaced(
        POSITIONS, "is_neox_style=is_neox_style\n", "is_neox_style=is_neox_style, base=1\n"
    )
    found = verdict(asking)
    assert list(found.letters) == ["H", "R"]
    assert found.findings[1].sentence == "vLLM's get_rope has no parameter base"


def test_positional_arguments_that_moved_are_r_though_their_number_fits() -> None:
    moved = {
        POSITIONS: str(codebase("lmcache").read(POSITIONS), "utf-8").replace(
            "head_size=head_size, max_position=max_position, is_neox_style=is_neox_style",
            "head_size, is_neox_style, max_position",
        )
    }
    assert of(moved) == ["H", "R"]  # type: ignore[arg-type]


def test_a_rope_that_nobody_builds_is_no_letter() -> None:
    unused = replaced(BASE, "        self.rope = get_fused_rope(64, 2048)\n", "")
    gone = replaced(
        ROPE, "is_neox_style=True, rope_parameters=None, ", "rope_parameters, is_neox_style=True, "
    )
    assert of(gone) == ["H", "R"]
    assert of({**gone, **unused}) == ["H"]


# E


def test_a_method_that_no_class_above_the_model_has_is_e() -> None:
    renamed = replaced(LLAMA, "def embed_input_ids", "def get_input_embeddings")
    found = verdict(renamed)
    assert list(found.letters) == ["H", "E"]
    assert (found.findings[1].path, found.findings[1].line) == (BASE, 13)


def test_asking_for_either_method_first_is_no_letter() -> None:
    either = """        if hasattr(self.vllm_model, "get_input_embeddings"):
            return self.vllm_model.get_input_embeddings(input_ids)
        elif hasattr(self.vllm_model, "embed_input_ids"):
            return self.vllm_model.embed_input_ids(input_ids)
        raise AttributeError
"""
    asking = replaced(BASE, "        return self.vllm_model.embed_input_ids(input_ids)\n", either)
    assert of(asking) == ["H"]
    neither = replaced(LLAMA, "def embed_input_ids", "def embed")
    assert of({**asking, **neither}) == ["H", "E"]


# K, S, V


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, Shape.KEYS_FIRST),
        (replaced(FLASH, SHAPE, SECOND), Shape.BLOCKS_FIRST),
        (replaced(FLASH, SHAPE, PACKED), Shape.PACKED),
        (replaced(FLASH, SHAPE, "shape_of(num_blocks)"), None),
        ({FLASH: "class FlashAttentionBackend:\n    pass\n", SPECS: BY_LAYER}, Shape.PACKED),
    ],
)
def test_the_shape_of_the_kv_cache_is_read_from_vllm(changes: Changes, shape: Shape | None) -> None:
    assert kv_shape(codebase("vllm", changes)) is shape


def test_the_packed_shape_is_k_at_the_first_stored_request() -> None:
    found = verdict(replaced(FLASH, SHAPE, PACKED)).findings[1]
    assert (found.letter, found.when, found.path) == ("K", When.STORED, GPU)


def test_a_shape_that_cant_be_read_is_k_and_says_so() -> None:
    found = verdict(replaced(FLASH, SHAPE, "shape_of(num_blocks)")).findings[1]
    assert (found.letter, "can't be read" in found.sentence) == ("K", True)


def test_the_second_shape_is_k_only_where_the_layerwise_connector_doesnt_look() -> None:
    second = replaced(FLASH, SHAPE, SECOND)
    assert "K" not in of(second)
    blind = {GPU: str(codebase("lmcache").read(GPU), "utf-8").replace("vllm_two_major", "other")}
    assert "K" in of({**second, **blind})


def test_the_second_shape_is_s_where_the_plain_connector_doesnt_look() -> None:
    found = verdict(replaced(FLASH, SHAPE, SECOND))
    assert list(found.letters) == ["H", "S"]
    assert found.findings[1].scope is Scope.PLAIN
    looking = {
        GPU: str(codebase("lmcache").read(GPU), "utf-8").replace(
            "self.page_buffer_size = ", "self.page_buffer_size = self.kv_format and "
        )
    }
    assert of({**replaced(FLASH, SHAPE, SECOND), **looking}) == ["H"]


def test_keys_that_are_counted_off_from_the_front_are_s_with_gds() -> None:
    counted = replaced(STORAGE, "return list(keys), found", "return keys[: len(found)], found")
    found = verdict(counted)
    assert list(found.letters) == ["H", "S"]
    assert found.findings[1].scope is Scope.GDS


RUNNER = """
MODELS = frozenset({"Qwen3ForCausalLM"})
DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES = frozenset({"Qwen3ForCausalLM", "OtherForCausalLM"})


class VllmConfig:
    @property
    def use_v2_model_runner(self):
        if envs.VLLM_USE_V2_MODEL_RUNNER is not None:
            return envs.VLLM_USE_V2_MODEL_RUNNER
        if not self._is_default_v2_model_runner_model():
            return False
        return True
"""


def test_a_new_runner_by_default_is_v_with_the_settings_it_needs() -> None:
    found = verdict({CONFIG: RUNNER}).findings[-1]
    assert (found.letter, found.scope) == ("V", Scope.SETTINGS)
    assert "for Qwen3ForCausalLM" in found.sentence
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in found.sentence
    assert "use_layerwise" not in found.sentence
    hooked = replaced(
        CONNECTOR,
        "    def register_kv_caches(",
        "    def requires_piecewise_for_cudagraph(cls, extra):\n        return True\n\n"
        "    def register_kv_caches(",
    )
    assert "use_layerwise" in verdict({CONFIG: RUNNER, **hooked}).findings[-1].sentence


def test_a_new_runner_that_must_be_asked_for_is_no_letter() -> None:
    asked = RUNNER.replace("        return True\n", "        return False\n")
    assert of({CONFIG: asked}) == ["H"]


def test_letters_come_in_the_order_in_which_they_strike() -> None:
    everything: Changes = {
        UTILS: "",
        ATTENTION: "",
        CONFIG: RUNNER,
        **replaced(
            ROPE,
            "is_neox_style=True, rope_parameters=None, ",
            "rope_parameters, is_neox_style=True, ",
        ),
        **replaced(REQUEST, "        self.priority = priority\n", "        pass\n"),
        **replaced(FLASH, SHAPE, PACKED),
        **replaced(LLAMA, "def embed_input_ids", "def embed"),
        **replaced(STORAGE, "return list(keys), found", "return keys[: len(found)], found"),
    }
    assert of(everything) == ["X", "H", "A", "R", "C", "K", "E", "S", "V"]
