"""What --serve may be given: a command, a script, and things that are neither."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.serve_option import launch_of, other_kind, script_of


def test_a_command_and_a_script_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.sh").write_text('DIR=$(dirname "$0")\nvllm serve "$DIR/m"\n')
    assert launch_of("start.sh").model == f"{tmp_path}/m"
    assert launch_of("vllm serve m").model == "m"
    assert script_of("start.sh") == Path("start.sh")
    assert script_of("vllm serve m") is None


def test_what_a_script_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("MODEL=m\n")
    (tmp_path / "start.sh").write_text('. "$(dirname "$0")/env.sh"\nvllm serve $MODEL\n')
    (tmp_path / "a.service").write_text(f"[Service]\nExecStart=/bin/sh {tmp_path}/start.sh\n")
    assert launch_of(str(tmp_path / "start.sh")).model == "m"
    assert launch_of(str(tmp_path / "a.service")).model == "m"


def test_of_a_link_the_folder_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text('vllm serve --config "$(dirname "$0")/s.yaml"\n')
    (tmp_path / "link.sh").symlink_to("start.sh")
    assert launch_of(str(tmp_path / "link.sh")).args[-1].startswith("$(")


@pytest.mark.parametrize(
    "given",
    ["VLLM_API_KEY=SECRET vllm serv m", "SECRET", "A=SECRET", "x" * 5000 + "SECRET", "\0SECRET"],
)
def test_words_that_start_nothing_are_not_repeated(given: str) -> None:
    with pytest.raises(KvpatchError, match="no command that starts vLLM") as caught:
        launch_of(given)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "SECRET" not in str(caught.value) + caught.value.hint


def test_only_the_beginning_of_a_file_is_read(tmp_path: Path) -> None:
    large = tmp_path / "huge.sh"
    large.write_text("vllm serve m\n")
    os.truncate(large, 1 << 40)
    assert launch_of(str(large)).model == "m"


@pytest.mark.parametrize("name", ["/proc/kmsg", "/dev/kmsg"])
def test_a_file_that_waits_for_more_is_not_waited_for(name: str, tmp_path: Path) -> None:
    if not Path(name).exists():
        pytest.skip(f"there is no {name} here")
    link = tmp_path / "link"
    link.symlink_to(name)
    with pytest.raises(KvpatchError):
        launch_of(str(link))


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("compose.yaml", "services:\n  vllm:\n    command: vllm serve m\n", "YAML"),
        ("pod", "# a pod\n---\napiVersion: v1\nkind: Pod\n", "YAML"),
        ("part.yml", "  - vllm\n  - serve\n", "YAML"),
        ("pod.json", "{}", "JSON"),
        ("Dockerfile", 'CMD ["vllm", "serve", "m"]\n', "image"),
        ("Dockerfile.cuda", "RUN vllm serve m\n", "image"),
        ("image", "# syntax=docker/dockerfile:1\nARG V=1\nFROM vllm/vllm-openai\nCMD x\n", "image"),
        ("start.sh", "#!/bin/bash\nname=x\nvllm serve m\n", ""),
        ("vllm.service", "[Service]\nExecStart=vllm serve m\n", ""),
        ("start", "vllm serve m\nFROM=x\n", ""),
    ],
)
def test_what_no_shell_reads_is_refused_with_what_to_give(
    name: str, text: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert kind in other_kind(name, text)
    assert bool(other_kind(name, text)) is bool(kind)
    if kind:
        with pytest.raises(KvpatchError, match="no shell script") as caught:
            launch_of(str(tmp_path / name))
        assert caught.value.exit_code is ExitCode.USAGE
        assert "--env-file" in str(caught.value.hint)
    else:
        assert launch_of(str(tmp_path / name)).model == "m"


@pytest.mark.parametrize("command", ["docker compose up -d", "systemctl start vllm --now"])
def test_another_programs_options_are_no_command_of_vllm(command: str) -> None:
    with pytest.raises(KvpatchError, match="no `vllm serve` in it"):
        launch_of(command)
