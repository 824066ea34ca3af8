"""What ``kvpatch doctor`` examines, on a pair of real releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvpatch.fsops import Disk
from kvpatch.host import Where
from kvpatch.subject import Asked, Subject, subject_of
from test_field_blending import site_of

pytestmark = pytest.mark.releases

GDS = "gds_path: /mnt/nvme/a\ngds_buffer_size: 64\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return site_of(tmp_path, "0.32.0", "0.5.6")


def examined(site: Path, **asked: Any) -> Subject:
    return subject_of(Where(site=site), Disk(), Asked(**asked))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("chunk_size: 256\n", "cpu-offload"),
        ("enable_blending: false\n", "cpu-offload"),
        ("enable_blending: true\n", "blend"),
        (GDS, "gds"),
        (f"enable_blending: true\n{GDS}", "gds-blend"),
        # Nothing is known of what can't be read.
        ("enable_blending: [\n", "blend"),
    ],
)
def test_a_configuration_is_examined_for_what_it_does(
    site: Path, tmp_path: Path, text: str, name: str
) -> None:
    config = tmp_path / "lmcache.yaml"
    config.write_text(text)
    assert examined(site, config=config).template.name == name


def test_what_was_named_counts_and_blending_where_nothing_was(site: Path) -> None:
    assert examined(site).template.name == "blend"
    assert examined(site, profile="gds").template.name == "gds"
    assert examined(site, profile="gds").pair.lmcache is not None
    alone = examined(site, profile="native-offload")
    assert (alone.pair.lmcache, str(alone.pair.vllm)) == (None, "0.32.0")


def test_a_model_that_leaves_values_out_keeps_nothing_else_from_being_examined(
    site: Path, tmp_path: Path
) -> None:
    config = {"architectures": ["Gemma3"], "model_type": "gemma3", "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = examined(site, profile="gds-blend", model=tmp_path)
    assert found.model is None
    assert found.left_out is not None
    assert found.left_out.architecture == "Gemma3"
    assert found.values["enable_blending"] is True


def test_a_profile_is_made_for_the_model_that_was_named(site: Path, tmp_path: Path) -> None:
    model = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "hidden_size": 256,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(model))
    found = examined(site, profile="gds-blend", model=tmp_path)
    assert found.model is not None
    # 4096 tokens of 4 layers with keys and values of 256 numbers in 2 bytes.
    assert found.values["gds_buffer_size"] == 4096 * 4 * 2 * 256 * 2 // 2**20
    assert examined(site, profile="gds-blend").values["gds_buffer_size"] > 16
