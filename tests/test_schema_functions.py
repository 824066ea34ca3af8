"""What a release's functions tell of how it takes its values, on texts in its shapes."""

from __future__ import annotations

import ast

import pytest
from kvpatch.schema_functions import Functions, calls, text_of

NEWER = """
def _apply_env_converter_safely(name, value):
    return int(value)

def validate_and_set_config_value(config, name, value):
    setattr(config, name, _apply_env_converter_safely(name, value))

def _update_config_from_env(self):
    self.validate()
"""
OLDER = """
class LMCacheEngineConfig:
    @staticmethod
    def from_file(path):
        if not re.match(r"(.*)://(.*):(\\\\d+)", url):
            raise ValueError(url)

    def validate(self):
        return self
"""


def functions(text: str, base: str = "") -> Functions:
    return Functions(ast.parse(text), ast.parse(base))


def test_functions_beside_the_class_convert_files_and_overrides() -> None:
    reading = functions(NEWER).reading()
    assert reading.converts_file
    assert reading.none_on_failure
    assert reading.overrides
    assert reading.converts_overrides
    assert reading.validates == "env"


def test_a_class_reads_files_as_they_are_and_checks_a_url_by_its_form() -> None:
    reading = functions(OLDER).reading()
    assert not reading.converts_file
    assert not reading.env_beside_file
    assert not reading.overrides
    assert reading.validates == "file"
    assert "://" in reading.remote_form


def test_the_code_that_is_kept_is_what_the_converters_call_and_no_more() -> None:
    text = "def a(x):\n    return b(x)\ndef b(x):\n    return x\ndef c(x):\n    return x\n"
    kept = ast.parse(functions(text).code(["lambda x: a(x)"]))
    assert {one.name for one in kept.body if isinstance(one, ast.FunctionDef)} == {"a", "b"}


@pytest.mark.parametrize(("called", "found"), [("f(x)", True), ("o.f(x)", True), ("g(f)", False)])
def test_a_call_is_found_by_its_name_or_its_attribute(called: str, found: bool) -> None:
    (function,) = ast.parse(f"def h(x):\n    {called}\n").body
    assert isinstance(function, ast.FunctionDef)
    assert calls(function, "f") is found


def test_only_literal_text_is_text() -> None:
    texts = [ast.parse(one, mode="eval").body for one in ("'a'", "1", "a", "f'a'")]
    assert [text_of(one) for one in texts] == ["a", None, None, None]
