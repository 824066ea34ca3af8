"""What the options that verbs share come to."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from kvpatch import options
from kvpatch.fsops import Disk
from kvpatch.series import discover
from kvpatch.templates import profiles


def command() -> tuple[click.Command, list[dict[str, object]]]:
    seen: list[dict[str, object]] = []

    @click.command()
    @options.where
    @options.choice
    @options.trust
    def verb(**given: object) -> None:
        seen.append(given)

    return verb, seen


def test_options_are_listed_in_the_order_in_which_they_were_put_together() -> None:
    verb, _ = command()
    names = [name for parameter in verb.params for name in parameter.opts]
    assert names == [
        "--python",
        "--site",
        "--state",
        "--json",
        "--only",
        "--skip",
        "--accept-foreign",
        "--allow-unverified",
    ]


def test_where_and_which_become_what_the_verbs_take() -> None:
    verb, seen = command()
    line = "--site /s --state /j --only KV001 --only KV002 --skip KV003 --accept-foreign"
    assert CliRunner().invoke(verb, line.split()).exit_code == 0
    place = options.place(seen[0])
    assert (place.python, place.site, place.state) == (None, Path("/s"), Path("/j"))
    chosen = options.chosen(seen[0]["only"], seen[0]["skip"], seen[0])
    assert (chosen.only, chosen.skip) == (("KV001", "KV002"), ("KV003",))
    assert (chosen.options.accept_foreign, chosen.options.allow_unverified) == (True, False)


def test_files_are_trusted_only_where_that_was_said() -> None:
    trusted = options.chosen((), ()).options
    assert (trusted.accept_foreign, trusted.allow_unverified) == (False, False)


@pytest.mark.parametrize("typed", ["", "kv00", "KV01", "KV001", "x"])
def test_a_shell_is_offered_the_ids_that_begin_so(typed: str) -> None:
    verb, _ = command()
    offered = options.patch_ids(click.Context(verb), verb.params[4], typed)
    assert offered == [p.id for p in discover().members if p.id.lower().startswith(typed.lower())]


def test_a_shell_is_offered_the_profiles_that_begin_so() -> None:
    verb, _ = command()
    offered = options.profile_names(click.Context(verb), verb.params[4], "gds")
    assert offered == [p.name for p in profiles() if p.name.startswith("gds")]
    assert offered


def test_the_disk_of_a_test_is_taken_and_else_the_real_one() -> None:
    given = Disk()
    assert options.disk_of(given) is given
    assert type(options.disk_of(None)) is Disk
