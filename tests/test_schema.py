"""A schema's own questions, asked of one that was made by hand."""

from __future__ import annotations

import pytest
from kvpatch.schema import Key, Schema


def key(name: str, kind: str = "int", default: object = 1) -> Key:
    return Key(name, kind, default, None)


def test_a_key_inside_extra_config_counts_only_where_it_is_looked_for() -> None:
    keys = {name: key(name) for name in ("chunk_size", "gds_path", "extra_config")}
    schema = Schema("1", keys, frozenset({"use_cufile"}))
    assert schema.has("chunk_size")
    assert schema.has("extra_config.use_cufile")
    assert not schema.has("extra_config.other")
    assert not schema.has("gds_path.use_cufile")
    assert not schema.has("use_cufile")


@pytest.mark.parametrize(
    ("kind", "default", "optional"),
    [
        ("int", 1, False),
        ("Optional[str]", "a", True),
        ("list[int]", None, True),
        ("str", "", False),
    ],
)
def test_null_is_a_value_where_the_type_or_the_default_says_so(
    kind: str, default: object, optional: bool
) -> None:
    assert key("name", kind, default).optional is optional
