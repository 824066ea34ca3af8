from __future__ import annotations

from pathlib import Path

from kvpatch.pip_command import pip_install


def test_it_is_the_pip_of_the_interpreter_that_is_meant() -> None:
    told = pip_install(Path("/srv/v llm/bin/python"), "a==1", "b>=2")
    assert told == "'/srv/v llm/bin/python' -m pip install a==1 'b>=2'"


def test_where_no_interpreter_is_known_it_is_a_bare_one() -> None:
    assert pip_install(None, "a") == "pip install a"
