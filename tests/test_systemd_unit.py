"""Units as systemd reads them (systemd.service(5), systemd.exec(5))."""

from __future__ import annotations

import pytest
from kvpatch.script_file import Reader, ScriptFile
from kvpatch.script_path import UNKNOWN
from kvpatch.systemd_unit import calls, is_unit

UNIT = """# Don't remove this.
[Unit]
Description=Don't panic
[Service]
Environment=CFG=x.yaml "WORDS=--port 1"
Environment='TWO=a b'
WorkingDirectory=/srv
ExecStartPre=/bin/echo vllm serve other
ExecStart={start}
[Install]
WantedBy=multi-user.target
"""


def test_a_unit_is_known_by_its_sections() -> None:
    assert is_unit(UNIT)
    assert not is_unit("cat > a.service <<E\n[Service]\nE\nvllm serve m\n")
    assert not is_unit("[ -f x ] && vllm serve m\n")


@pytest.mark.parametrize(
    ("start", "args"),
    [
        ("/v/bin/vllm serve --config x.yaml", ["--config", "x.yaml"]),
        ("-/v/bin/vllm serve \\\n  # a comment\n  --config x.yaml", ["--config", "x.yaml"]),
        ("@/v/bin/vllm name serve m", ["m"]),
        ("!!:/v/bin/vllm serve m", ["m"]),
        ("/usr/bin/env A=1 vllm serve m", ["m"]),
        ("vllm serve ${CFG} $WORDS ${TWO} a$CFG", ["x.yaml", "--port", "1", "a b", "a$CFG"]),
        ("vllm serve a$$b 50%%", ["a$b", "50%"]),
        ("/bin/echo ; vllm serve m", ["m"]),
        ("/bin/bash -lc 'exec vllm serve $CFG'", ["x.yaml"]),
        ("vllm serve a;b & c", ["a;b", "&", "c"]),
    ],
)
def test_its_command_has_no_shell(start: str, args: list[str]) -> None:
    (found,) = calls(UNIT.format(start=start))
    texts = [one.text for one in found.arguments]
    assert texts[texts.index("serve") + 1 :] == args
    assert not any(one.computed for one in found.arguments)
    assert (found.folder, found.line, found.certain) == ("/srv", 9, True)
    assert found.environ["TWO"] == "a b"


@pytest.mark.parametrize(
    "more",
    ["WorkingDirectory=~", "WorkingDirectory=%h/x", "WorkingDirectory=\nWorkingDirectory=rel"],
)
def test_a_folder_that_hangs_on_the_user_is_not_told(more: str) -> None:
    (found,) = calls(f"[Service]\n{more}\nExecStart=vllm serve m\n")
    assert found.folder == UNKNOWN


def test_a_file_of_variables_may_change_all_of_them() -> None:
    text = UNIT.format(start="vllm serve --config ${CFG}\nEnvironmentFile=-/etc/x")
    (found,) = calls(text)
    # systemd.exec(5): where it is missing, the unit's own stand.
    assert found.environ == {"CFG": "x.yaml", "WORDS": "--port 1", "TWO": "a b"}
    assert found.unsure.has("CFG")
    assert found.unsure.causes == ("line 10 reads /etc/x for variables, which can't be read here",)
    assert [one.computed for one in found.arguments] == [False, False, False, True]


def reader(**files: str) -> Reader:
    """Reads files of /etc by their names."""
    return lambda name: ScriptFile(files[name[5:]], "/etc") if name[5:] in files else None


def test_a_file_of_variables_stands_above_those_of_the_unit() -> None:
    told = reader(x="CFG='y.yaml'\n# a comment\nMORE=50% of\n", z="MORE=z\n")
    more = "EnvironmentFile=-/etc/x\nEnvironmentFile=/etc/z\nEnvironment=CFG=z.yaml"
    (found,) = calls(UNIT.format(start=f"vllm serve --config ${{CFG}} ${{TWO}}\n{more}"), told)
    assert [one.text for one in found.arguments[2:]] == ["--config", "y.yaml", "a b"]
    assert found.environ["MORE"] == "z"
    (reset,) = calls(UNIT.format(start=f"vllm serve ${{CFG}}\n{more}\nEnvironmentFile="), told)
    assert [one.text for one in reset.arguments[2:]] == ["z.yaml"]


@pytest.mark.parametrize("name", ["/etc/n", "/etc/e", "/etc/b", "x", "/etc/%i", "/etc/*", ""])
def test_a_file_that_can_not_be_told_leaves_nothing_known(name: str) -> None:
    told = reader(x="A=1\n", e="export A=1\n", b="A='1\n")
    (found,) = calls(UNIT.format(start=f"vllm serve ${{CFG}}\nEnvironmentFile={name}"), told)
    assert found.arguments[-1].computed is (name != "")


@pytest.mark.parametrize("shell", ["", "/bin/bash ", "/usr/bin/env bash -e "])
def test_the_script_that_a_unit_starts_is_followed(shell: str) -> None:
    told = reader(s="#!/bin/bash\ncd /\nvllm serve $CFG $(dirname $0)/m $1\n")
    (found,) = calls(UNIT.format(start=f"{shell}/etc/s --port"), told)
    assert [one.text for one in found.arguments[2:]] == ["x.yaml", "/etc/m", "--port"]
    assert (found.folder, found.line) == ("/", 9)


def test_a_specifier_is_not_a_name() -> None:
    (found,) = calls("[Service]\nExecStart=vllm serve --config %h/x.yaml\n")
    assert found.arguments[-1].computed


def test_an_empty_command_takes_back_those_before() -> None:
    text = "[Service]\nExecStart=vllm serve a\nExecStart=\nExecStart=vllm serve b\n"
    assert [one.arguments[-1].text for one in calls(text)] == ["b"]
