from __future__ import annotations

from kvpatch.functions import MODULE, differing, function_hashes

TEXT = b"""import os

VALUE = 1


def alone():
    return VALUE


class Worker:
    @property
    def name(self):
        return "a"

    async def run(self):
        pass
"""


def test_functions_are_named_by_class_and_module_level_is_one_of_them() -> None:
    assert list(function_hashes(TEXT)) == [MODULE, "alone", "Worker.name", "Worker.run"]


def test_a_change_in_one_method_names_that_method_alone() -> None:
    changed = TEXT.replace(b'"a"', b'"b"')
    assert differing(function_hashes(TEXT), function_hashes(changed)) == ("Worker.name",)


def test_a_changed_decorator_belongs_to_its_function() -> None:
    changed = TEXT.replace(b"@property", b"@cached_property")
    assert differing(function_hashes(TEXT), function_hashes(changed)) == ("Worker.name",)


def test_a_change_outside_functions_is_at_module_level() -> None:
    changed = TEXT.replace(b"VALUE = 1", b"VALUE = 2")
    assert differing(function_hashes(TEXT), function_hashes(changed)) == (MODULE,)


def test_moving_a_function_down_by_blank_lines_changes_nothing() -> None:
    changed = TEXT.replace(b"\n\ndef alone", b"\n\n\n\ndef alone")
    assert differing(function_hashes(TEXT), function_hashes(changed)) == ()


def test_an_added_and_a_removed_function_are_both_named() -> None:
    changed = TEXT.replace(b"def alone", b"def other")
    assert set(differing(function_hashes(TEXT), function_hashes(changed))) == {"alone", "other"}


def test_a_text_that_does_not_parse_is_module_level_as_a_whole() -> None:
    assert list(function_hashes(b"def broken(:\n")) == [MODULE]
    assert list(function_hashes(b"\x00\xff")) == [MODULE]
