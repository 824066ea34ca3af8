"""Configuration keys read from source text: made-up layouts, and every release of LMCache."""

from __future__ import annotations

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.schema import CONFIG, READERS, Key, Unknown
from kvpatch.schema_source import parse_schema, read_schema

DEFINED = """
import somewhere

_CONFIG_DEFINITIONS: dict[str, dict[str, Any]] = {
    "chunk_size": {"type": int, "default": 256, "env_converter": int},
    "gds_path": {"type": Optional[str], "default": None, "env_converter": str},
    "timeout": {"type": float, "default": float("inf"), "env_converter": lambda x: float(x)},
    "plain": {"type": bool, "default": True, "description": "a word"},
    "extra_config": {"type": Optional[dict], "default": None},
}
"""

DATACLASS = """
@dataclass
class Other:
    wrong: int = 1

@dataclass
class LMCacheEngineConfig:
    chunk_size: int
    gds_path: Optional[str] = None
    separator: str = " # # "
    made: dict = field(default_factory=dict)

    @staticmethod
    def from_defaults(chunk_size: int = 1):
        return None

    @staticmethod
    def from_file(path):
        config = {}
        chunk_size = config.get("chunk_size", 256)
        separator = config.get("separator", compute())
"""


def test_the_dict_of_definitions_gives_names_types_defaults_and_converters() -> None:
    schema = parse_schema(DEFINED.encode(), "9.9")
    assert schema.version == "9.9"
    assert schema.keys == {
        "chunk_size": Key("chunk_size", "int", 256, "int"),
        "gds_path": Key("gds_path", "Optional[str]", None, "str"),
        "timeout": Key("timeout", "float", float("inf"), "lambda x: float(x)"),
        "plain": Key("plain", "bool", True, None),
        "extra_config": Key("extra_config", "Optional[dict]", None, None),
    }


def test_the_fields_of_the_class_are_the_keys_with_the_defaults_of_a_file() -> None:
    schema = parse_schema(DATACLASS.encode(), "0.3.3")
    assert schema.keys == {
        "chunk_size": Key("chunk_size", "int", 256, None),
        "gds_path": Key("gds_path", "Optional[str]", None, None),
        "separator": Key("separator", "str", Unknown("compute()"), None),
        "made": Key("made", "dict", Unknown("field(default_factory=dict)"), None),
    }


@pytest.mark.parametrize(
    "reading",
    [
        "config.extra_config.get('name', None)",
        "(config.extra_config or {}).get('name', 3)",
        "extra_config = self.extra_config\nx = extra_config.get('name')",
        "self.extra_config['name']",
        "'name' in self.extra_config",
        "get_extra_config_bool('name', config)",
        "config.get_extra_config_value('name', 1)",
    ],
)
def test_names_looked_for_in_extra_config_are_found_however_they_are_read(reading: str) -> None:
    assert parse_schema(DEFINED.encode(), "1", [reading.encode()]).extra == {"name"}
    assert parse_schema(f"{DEFINED}\n{reading}".encode(), "1").extra == {"name"}


@pytest.mark.parametrize(
    "reading",
    ["config.get('name')", "other['name']", "extra_config.get(name)", "'name' in config", "get()"],
)
def test_other_reads_are_not_taken_for_extra_config(reading: str) -> None:
    assert parse_schema(DEFINED.encode(), "1", [reading.encode()]).extra == frozenset()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "neither"),
        ("class LMCacheEngineConfig:\n    pass", "neither"),
        ("_CONFIG_DEFINITIONS = {}", "neither"),
        ("_CONFIG_DEFINITIONS = build()", "not one dict literal"),
        (f"{DEFINED}\n_CONFIG_DEFINITIONS = {{}}", "not one dict literal"),
        ("_CONFIG_DEFINITIONS = {**BASE}", "no literal"),
        ("_CONFIG_DEFINITIONS = {NAME: {'type': int, 'default': 1}}", "no literal"),
        ("_CONFIG_DEFINITIONS = {'a': option(int)}", "no dict literal for a"),
        ("_CONFIG_DEFINITIONS = {'a': {'type': int}}", "no default for a"),
        (f"{DEFINED}\n_CONFIG_DEFINITIONS.update(more)", "changed after"),
        (f"{DEFINED}\n_CONFIG_DEFINITIONS['a'] = {{}}", "changed after"),
        (f"{DEFINED}\n_CONFIG_DEFINITIONS |= more", "changed after"),
        (f"{DEFINED}\ndel _CONFIG_DEFINITIONS['chunk_size']", "changed after"),
        ("def broken(:", "not valid Python"),
        ("x = '\0'", "not valid Python"),
    ],
)
def test_a_layout_that_is_not_known_is_refused_with_the_reason(source: str, why: str) -> None:
    with pytest.raises(KvpatchError, match=why) as caught:
        parse_schema(source.encode(), "9.9")
    assert (caught.value.code, caught.value.exit_code) == ("unknown-layout", ExitCode.REFUSED)
    assert "LMCache 9.9" in caught.value.message
    assert caught.value.hint


def test_changes_to_the_definitions_inside_a_function_do_not_matter() -> None:
    inside = f"{DEFINED}\ndef later():\n    _CONFIG_DEFINITIONS.update(more)"
    assert len(parse_schema(inside.encode(), "1").keys) == 5


def test_a_release_is_read_from_its_files_of_which_readers_may_be_absent() -> None:
    files = {CONFIG: DEFINED.encode()}
    assert read_schema(files.get, "1").extra == frozenset()
    files[READERS[0]] = b"config.extra_config['use_cufile']"
    assert read_schema(files.get, "1").extra == {"use_cufile"}
    with pytest.raises(KvpatchError, match=r"lmcache/v1/config\.py"):
        read_schema({}.get, "1")
