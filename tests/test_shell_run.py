"""Scripts against bash itself: what is told is what vLLM is given, and all else is left open."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvpatch import script_file
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_run import calls, calls_of
from kvpatch.shell_state import Withheld
from kvpatch.shell_words import TooLong, literal
from shell_scripts import run_by_bash

TOLD = [
    "vllm serve --config good.yaml;",
    "vllm serve --config good.yaml& wait",
    "(cd sub && vllm serve --config good.yaml)",
    "{ vllm serve --config good.yaml; }",
    "for i in 1; do vllm serve --config good.yaml; done",
    "serve_it() { exec vllm serve --config good.yaml; }\nserve_it",
    "function serve_it {\n exec vllm serve --config $1\n}\nserve_it good.yaml",
    "vllm serve --config good.yaml>/dev/null 2>&1 </dev/null",
    "CFG=good.yaml; PORT=8000\nexec vllm serve --config $CFG --port $PORT",
    "CFG=good.yaml; exec vllm serve --config $CFG",
    "CFG=good; CFG=$CFG.yaml; A=(x); A=(\"${A[@]}\" y)\nvllm serve --config $CFG \"${A[@]}\"",
    "CFG=good.yaml  # don't change it\nvllm serve --config $CFG",
    "BASE=/x\nCFG=$BASE/s\nvllm serve --config ${CFG}/s.yaml",
    'DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" &> /dev/null && pwd)"\ncd /\nvllm serve "$DIR/s"',
    'ARGS=(--config good.yaml --port 8001); exec vllm serve "${ARGS[@]}"',
    'ARGS=(\n  --config "a b.yaml" # the file\n)\nARGS+=(--port 1)\nvllm serve "${ARGS[@]}"',
    'A="--config good.yaml"; A+=" --port 1"; exec vllm serve $A',
    'A=""; vllm serve $A "$A" m',
    "set -- --config good.yaml\nvllm serve m \"$@\"",
    'CFG=a.yaml\nf() { local CFG=b.yaml; }\nf\nvllm serve --config "$CFG"',
    "CFG=a.yaml\nf() { CFG=b.yaml; }\nf\nvllm serve --config $CFG",
    "CFG=a.yaml\nf() { CFG=b.yaml; }\nvllm serve --config $CFG",
    "CFG=a.yaml\n(CFG=b.yaml)\nCFG=c.yaml | true\nvllm serve --config $CFG",
    "CFG=a.yaml\nCFG=b.yaml true\nvllm serve --config $CFG",
    "CFG=good.yaml\nexport CFG\nvllm serve --config ${CFG:-bad.yaml}",
    "if true; then CFG=a.yaml; else CFG=a.yaml; fi\nvllm serve --config $CFG",
    'if [ -z "$HOME" ]; then CFG=a.yaml; exit 1; fi\nCFG=b.yaml\nvllm serve --config $CFG',
    "cd sub\nvllm serve --config x.yaml",
    "cd sub || exit 1\ncd .. ; vllm serve --config x.yaml",
    "pushd /tmp\npopd\nvllm serve --config x.yaml",
    "(\ncd sub\n)\nvllm serve --config x.yaml",
    "f() {\ncd sub\n}\nvllm serve --config x.yaml",
    "f() {\ncd sub\n}\nf\nvllm serve --config x.yaml",
    "cd sub & vllm serve --config x.yaml",
    "env -C sub vllm serve --config x.yaml",
    "bash -c 'cd sub; exec vllm serve --config x.yaml'",
    "export CFG=a.yaml\nsh -c 'exec vllm serve --config $CFG'",
    "eval 'vllm serve --config x.yaml'",
    "cd .   # don't move this\nvllm serve --config x.yaml",
    "# was: vllm serve old \\\nvllm serve --config x.yaml",
    "cat >/dev/null <<EOF\nvllm serve MODEL --config FILE\nDon't\nEOF\nvllm serve --config x.yaml",
    "cat <<-'E' >/dev/null; A=1\n\tvllm serve b\n\tE\nvllm serve --config x.yaml --port $A",
    "echo starting vllm serve with good.yaml\nvllm serve --config x.yaml",
    "VLLM=vllm\n$VLLM serve --config x.yaml",
    'exec "$(which vllm)" serve --config x.yaml',
    "exec $(command -v vllm) serve --config x.yaml",
    "vllm serve 'a\"b' \"c'd \\$x\" e\\ f $'g\\'h'",
    "vllm serve m --json '{\"a\": \"$x\"}' && echo vllm serve other",
    "case a in (b) echo b;; a|c) : ;; esac\nvllm serve m",
    "[[ a < b && -n x || ( -n y ) ]] && true\nvllm serve m",
    "for ((i = 0; i < 1; i++)); do true; done\nvllm serve m",
    "((x = 1 << 2))\nvllm serve m",
    "while read -r l; do CFG=$l; done < /dev/null\nCFG=a.yaml\nvllm serve --config $CFG",
    "! false && vllm serve m --port 1",
    "break\nreturn\nvllm serve m",
    "f() { break; A=1; }\nfor i in 1; do f; vllm serve m; done",
    "LMCACHE_CONFIG_FILE=/a.yaml vllm serve m",
    "export LMCACHE_CONFIG_FILE=/a.yaml;\nvllm serve m",
    "env LMCACHE_CONFIG_FILE=/a.yaml vllm serve m",
    "vllm serve --config ~/x.yaml; exit\nvllm serve other",
    "A=1; ((B = A == 2)); vllm serve m -tp $A",
    "vllm serve m --x '{\"a\":1,\"b\":2}' --y '*'",
    'A=*.sh; vllm serve "$A"',
    'A=(m --port 1)\nexec bash -c "vllm serve ${A[*]}"',
    'f() { bash -c "vllm serve m $*"; }\nf --port 1',
    'A=(m --port 1)\nvllm serve "${A[*]}"',
    'A=()\nvllm serve m "${A[@]}"',
    'set --\nvllm serve m "$@"',
    "f() { vllm serve m $G; }\nG=--a\nG=--b f",
    "G=--a\nG=--b eval 'vllm serve m $G'",
    "G=--a\nf() { G=--c; }\nG=--b f\nvllm serve m $G",
    "CFG=bad.yaml\nunset CFG\nvllm serve --config $CFG",
    "CFG=a; unset CFG; vllm serve ${CFG:-d} ${CFG-e}",
    "vllm serve m --x={1,2}",
    'vllm serve m --x {"a":1,"b":{"c":2,"d":3}}',
    'KV={"a":1,"b":2}; vllm serve m --x $KV',
    'export KV={"a":1,"b":2}; vllm serve m --x $KV',
    "G=$(\n # don't count\n echo 2\n)\nvllm serve m --a",
    "X=$(cat <<E\nit's )\nE\n)\nvllm serve m --a",
    "X=\"$(case a in a) echo \"it's\";; esac)\"\nvllm serve m --a",
    "run() { \"$@\"; }\nrun export CFG=a\nvllm serve $CFG",
    "CFG=a\nf() { export \"$1=$2\"; }\nf CFG b\nvllm serve $CFG",
    "N=CFG; export $N=a\nvllm serve $CFG",
    "declare -x \"CFG=a b\"\nvllm serve \"$CFG\"",
    "\\export CFG=a\nvllm serve $CFG",
    "vllm() { command vllm \"$@\" --b; }\nvllm serve m",
    "f() { bash -c 'f() { vllm serve m; }; f'; }\nf",
    "A=1; timeout ${A}0 vllm serve m",
]  # fmt: skip
"""Of these everything is known."""

GIVEN = [
    "LMCACHE_CONFIG_FILE=/a.yaml\nvllm serve m",
    "export LMCACHE_CONFIG_FILE\nLMCACHE_CONFIG_FILE=/a.yaml\nvllm serve m",
    "set -a\nLMCACHE_CONFIG_FILE=/a.yaml\nset +a\nvllm serve m",
    "set -o allexport; LMCACHE_CONFIG_FILE=/a.yaml; vllm serve m",
    "set +a; LMCACHE_CONFIG_FILE=/a.yaml; vllm serve m",
    "readonly LMCACHE_CONFIG_FILE=/a.yaml\nvllm serve m",
    "declare -x LMCACHE_CONFIG_FILE=/a.yaml\nvllm serve m",
    "export LMCACHE_CONFIG_FILE=/a.yaml; declare +x LMCACHE_CONFIG_FILE=/b.yaml; vllm serve m",
    "export LMCACHE_CONFIG_FILE=/a.yaml; export -n LMCACHE_CONFIG_FILE; vllm serve m",
    "export LMCACHE_CONFIG_FILE=/a.yaml; unset LMCACHE_CONFIG_FILE; vllm serve m",
    "export LMCACHE_CONFIG_FILE=/a; unset LMCACHE_CONFIG_FILE; LMCACHE_CONFIG_FILE=/b; vllm serve",
    "export LMCACHE_CONFIG_FILE=/a.yaml\nenv -u LMCACHE_CONFIG_FILE vllm serve m",
    "export LMCACHE_CONFIG_FILE=/a.yaml\nenv --unset=LMCACHE_CONFIG_FILE vllm serve m",
    'export LMCACHE_CONFIG_FILE=/a.yaml\nenv -i PATH="$PATH" SAID="$SAID" vllm serve m',
    "export LMCACHE_CONFIG_FILE=/a.yaml\nexec vllm serve m",
    "LMCACHE_CONFIG_FILE=/a.yaml; bash -c 'vllm serve m'",
    "LMCACHE_CONFIG_FILE=/a.yaml bash -c 'vllm serve m'",
    "export LMCACHE_CONFIG_FILE=/a.yaml; bash -c 'unset LMCACHE_CONFIG_FILE; vllm serve m'",
    "export LMCACHE_CONFIG_FILE=/a.yaml; bash -c 'LMCACHE_CONFIG_FILE=/b.yaml; vllm serve m'",
    "f() { vllm serve m; }\nLMCACHE_CONFIG_FILE=/a.yaml f",
    "f() { local LMCACHE_CONFIG_FILE=/a.yaml; vllm serve m; }\nf",
    "f() { local -x LMCACHE_CONFIG_FILE=/a.yaml; vllm serve m; }\nf",
    "f() { local -x LMCACHE_CONFIG_FILE=/a.yaml; }\nf\nLMCACHE_CONFIG_FILE=/b.yaml\nvllm serve m",
    "f() { true; }\nLMCACHE_CONFIG_FILE=/a.yaml f\nvllm serve m",
    "LMCACHE_CONFIG_FILE=/a.yaml eval 'vllm serve m'",
    "LMCACHE_CONFIG_FILE=/a.yaml eval true\nvllm serve m",
    'export "LMCACHE_CONFIG_FILE=/a.yaml"\nvllm serve m',
    'LMCACHE_CONFIG_FILE=/a.yaml\nexport "LMCACHE_CONFIG_FILE"\nvllm serve m',
    "LMCACHE_CONFIG_FILE=/a.yaml\nN='A LMCACHE_CONFIG_FILE'; export $N\nvllm serve m",
    'declare -x "LMCACHE_CONFIG_FILE=/a.yaml"\nvllm serve m',
    "export LMCACHE_CONFIG_FILE=/a.yaml\nunset ${!LMCACHE_@}\nvllm serve m",
    "env -S 'LMCACHE_CONFIG_FILE=/a.yaml vllm serve m'",
    "bash -c 'LMCACHE_CONFIG_FILE=/a.yaml; vllm serve m'",
    "env LMCACHE_CONFIG_FILE=~/a.yaml vllm serve m",
    'env "LMCACHE_CONFIG_FILE=~/a.yaml" vllm serve m',
    "export LMCACHE_CONFIG_FILE={/a,/b}.yaml; vllm serve m",
]
"""Of these it is told whether the variable reaches vLLM."""

OPEN = [
    "popd && exit\nvllm serve m",
    'vllm serve --config "${CFG:-good.yaml}"',
    "vllm serve --config ${1:-x.yaml}",
    'vllm serve "$@"',
    'vllm serve $EXTRA m',
    'ARGS=(--port 1)\n[ -n "$HOME" ] && ARGS+=(--config x.yaml)\nvllm serve "${ARGS[@]}"',
    'CFG=bad.yaml\nCFG="$HOME$D/good.yaml"\nvllm serve --config $CFG',
    'CFG=bad.yaml\nCFG=$(echo good.yaml)\nvllm serve --config $CFG',
    'CFG=bad.yaml\n[ -n "$PATH" ] && CFG=good.yaml\nvllm serve --config $CFG',
    'CFG=bad.yaml\n[ -z "$PATH" ] || CFG=good.yaml\nvllm serve --config $CFG',
    'CFG=bad.yaml\nif [ -n "$PATH" ]; then CFG=good.yaml; fi\nvllm serve --config $CFG',
    "CFG=bad.yaml\ncase a in a) CFG=good.yaml;; esac\nvllm serve --config $CFG",
    "CFG=bad.yaml\nfor CFG in good.yaml; do :; done\nvllm serve --config $CFG",
    "CFG=bad.yaml\nwhile true; do CFG=good.yaml; break; done\nvllm serve --config $CFG",
    "CFG=b.yaml\nwhile true; do CFG=g.yaml; true && break; CFG=b.yaml; done\nvllm serve $CFG",
    "CFG=bad.yaml\nread CFG <<< good.yaml\nvllm serve --config $CFG",
    "CFG=bad.yaml\nprintf -v CFG good.yaml\nvllm serve --config $CFG",
    "CFG=bad.yaml\nf() { if true; then CFG=a; return; fi; CFG=bad.yaml; }\nf\nvllm serve $CFG",
    ": ${CFG:=good.yaml}\nvllm serve --config $CFG",
    "CFG=good.yaml\nlocal CFG=bad.yaml\nvllm serve --config $CFG",
    'X=CFG=good.yaml; eval "$X$Y"\nvllm serve --config $CFG',
    "[ -d sub ] && cd sub\nvllm serve --config x.yaml",
    "if [ -d sub ]; then cd sub; fi\nvllm serve --config x.yaml",
    'cd "$(ls -d s*b)"\nvllm serve --config x.yaml',
    "f() { [ -d sub ] && cd sub; }\nf\nvllm serve --config x.yaml",
    "CFG=a.yaml\nbash -c 'vllm serve --config $CFG'",
    'cd sub; DIR=$(dirname "$0")\nvllm serve --config "$DIR/x.yaml"',
    'CMD=(vllm serve "$MODEL" --port 80)\nexec "${CMD[@]}"',
    'CMD=(vllm serve "${MODEL:-m}" --port 80 "$@")\nexec "${CMD[@]}"',
    'MODEL=${1:?usage}\nCMD=(vllm serve "$MODEL")\nexec "${CMD[@]}"',
    'CMD=(vllm serve m)\n[[ -n "$HOME" ]] && CMD+=(--port 1)\nexec "${CMD[@]}"',
    'CMD="vllm serve $MODEL --port 80"\n$CMD',
    'CMD="vllm serve m"\nif [ -n "$HOME" ]; then CMD="$CMD -tp 2"; fi\nexec $CMD',
    'eval "vllm serve m --port 1 $EXTRA"',
    'CMD="vllm serve m $EXTRA"\nEXTRA=--a\neval "$CMD"',
    'CMD="vllm serve m $EXTRA"\nexport EXTRA=--a\nbash -c "$CMD"',
    'A="m --port"\nA="$A $N"\nvllm serve $A',
    "IFS=,\nA=a,b\nvllm serve $A",
    'IFS=,; A=(a b)\nvllm serve "${A[*]}"',
    "echo m | xargs vllm serve",
    "A=1; ((A++)); vllm serve m -tp $A",
    "A=1; B=$((A += 5)); vllm serve m -tp $A",
    "A=1; echo $((--A)); vllm serve m -tp $A",
    "vllm serve m --x={1..2}",
    "A='*'; vllm serve $A",
    "CFG=a\nsource <(echo CFG=b)\nvllm serve $CFG",
    'CFG=a\nsource "${ENV:-/dev/null}"\nvllm serve $CFG',
    "CFG=a\nfor f in *.sh; do . ./none-$f; done\nvllm serve $CFG",
    "CFG=a\nwhile read l; do export \"$l\"; done <<< CFG=b\nvllm serve $CFG",
    "CFG=a\nexport $(echo CFG=b)\nvllm serve $CFG",
    "CFG=a\nN=$(echo CFG); export $N=b\nvllm serve $CFG",
    "CFG=a\nf() { printf -v \"$1\" b; }\nf CFG\nvllm serve $CFG",
    "CFG=a\nN=$(echo CFG); printf -v $N b\nvllm serve $CFG",
    "CFG=a\nf() { local -n r=$1; r=b; }\nf CFG\nvllm serve $CFG",
    "CFG=a\nset_it() { read \"$1\" <<< b; }\nset_it CFG\nvllm serve $CFG",
    "CFG=a\nf() { [ x = y ] && f; CFG=b; }\nf; vllm serve $CFG",
    "vllm serve m --x *.sh",
]  # fmt: skip
"""Of these something can't be told."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    return tmp_path


@pytest.mark.parametrize("script", TOLD)
def test_what_is_known_is_what_bash_gives_vllm(
    script: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (found,) = calls(f"{script}\n", str(folder))
    (started,) = run_by_bash(f"{script}\n", folder)
    assert not any(one.computed for one in found.arguments)
    texts = [str(Path(one.text).expanduser()) if one.text[:1] == "~" else one.text
             for one in found.arguments]  # fmt: skip
    assert tuple(texts[1:]) == started.args
    assert found.folder != UNKNOWN
    assert (folder / (found.folder or "")).resolve() == Path(started.folder).resolve()
    if started.config_file != "unset":
        assert found.environ["LMCACHE_CONFIG_FILE"] == started.config_file


@pytest.mark.parametrize("script", GIVEN)
def test_a_variable_counts_where_bash_gives_it_to_vllm(
    script: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (found,) = calls(f"{script}\n", str(folder))
    (started,) = run_by_bash(f"{script}\n", folder)
    given = found.environ.get("LMCACHE_CONFIG_FILE", "unset")
    assert given == started.config_file
    assert ("LMCACHE_CONFIG_FILE" in found.withheld) <= (given == "unset")
    assert not found.unsure.has("LMCACHE_CONFIG_FILE")


UNSURE = [
    "export LMCACHE_CONFIG_FILE=$PWD/a.yaml\nvllm serve m",
    "export LMCACHE_CONFIG_FILE=${LMCACHE_CONFIG_FILE:-/a.yaml}\nvllm serve m",
    "export LMCACHE_CONFIG_FILE=$(pwd)/a.yaml\nvllm serve m",
    ": ${LMCACHE_CONFIG_FILE:=/a.yaml}; export LMCACHE_CONFIG_FILE\nvllm serve m",
    'if [ -z "$LMCACHE_CONFIG_FILE" ]; then export LMCACHE_CONFIG_FILE=/a.yaml; fi\nvllm serve m',
    "case $1 in *) export LMCACHE_CONFIG_FILE=/a.yaml;; esac\nvllm serve m",
    'export LMCACHE_CONFIG_FILE=/a.yaml\neval "$(echo LMCACHE_CONFIG_FILE=/b.yaml)"\nvllm serve m',
    "export LMCACHE_CONFIG_FILE=/a.yaml\nenv $(echo LMCACHE_CONFIG_FILE=/b.yaml) vllm serve m",
    "env LMCACHE_CONFIG_FILE=/$HOME.yaml$X vllm serve m",
    "export LMCACHE_CONFIG_FILE=/a.yaml\nsource <(echo LMCACHE_CONFIG_FILE=/b.yaml)\nvllm serve m",
    "export $(echo LMCACHE_CONFIG_FILE=/b.yaml)\nbash -c 'vllm serve m'",
    'LMCACHE_CONFIG_FILE=/a.yaml; [ -n "$HOME" ] && export LMCACHE_CONFIG_FILE\nvllm serve m',
]
"""Of these it is told that the variable is set, and not to what."""


@pytest.mark.parametrize("script", UNSURE)
def test_a_variable_that_may_be_set_otherwise_is_said_to_be(script: str, folder: Path) -> None:
    (found,) = calls(f"{script}\n", str(folder))
    (started,) = run_by_bash(f"{script}\n", folder)
    assert started.config_file != "unset"
    assert found.unsure.has("LMCACHE_CONFIG_FILE")
    assert "LMCACHE_CONFIG_FILE" not in found.withheld


def test_what_keeps_a_variable_from_vllm_is_told() -> None:
    script = "A=1\nexport B=2\n{front} vllm serve m"
    for front, kept in (
        ("", {"A": Withheld("1")}),
        ("sudo -u x", {"A": Withheld("1"), "B": Withheld("2", "sudo")}),
        ("sudo -E", {"A": Withheld("1")}),
        ("env -u B", {"A": Withheld("1"), "B": Withheld("2", "env")}),
        ("exec -c", {"A": Withheld("1"), "B": Withheld("2", "exec")}),
        ("docker run image", {}),
    ):
        (found,) = calls(script.format(front=front))
        assert found.withheld == kept


@pytest.mark.parametrize("script", OPEN)
def test_what_is_not_certain_is_left_open(script: str, folder: Path) -> None:
    # bash starts it, so the script is one that people could write.
    assert run_by_bash(f"{script}\n", folder, "good.yaml")
    (found,) = calls(f"{script}\n", str(folder))
    assert found.folder == UNKNOWN or any(one.computed for one in found.arguments)


@pytest.mark.parametrize(
    ("script", "certain"),
    [
        ("vllm serve a", True),
        ("cd sub && vllm serve a", True),
        ("if true; then vllm serve a; fi", False),
        ("true | vllm serve a", True),
        ("test x && vllm serve a", False),
        ("test x || vllm serve a", False),
        ("while true; do vllm serve a; done", False),
        ("f() { vllm serve a; }\nf", True),
        ("f() { vllm serve a; }", False),
    ],
)
def test_whether_it_runs_in_any_case_is_told(script: str, certain: bool) -> None:
    (found,) = calls(script)
    assert found.certain is certain


def test_every_start_is_found_in_its_line() -> None:
    script = "if x; then\n  vllm serve a\nelse\n  vllm serve b\nfi\nbash -c '\nvllm serve c'\n"
    found = calls(script)
    assert [(one.line, one.arguments[2].text) for one in found] == [(2, "a"), (4, "b"), (6, "c")]


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [
        ("docker run -v ./a:/b IMAGE vllm serve m", "docker"),
        ("ssh host 'cd /x && vllm serve m'", "ssh"),
        ("docker exec c bash -c 'vllm serve m'", "docker"),
        ("$RUN vllm serve m", "$RUN"),
        ("$PYTHON -m vllm.entrypoints.openai.api_server", ""),
        ("nohup vllm serve m", ""),
    ],
)
def test_a_start_in_a_container_or_on_another_machine_is_told(command: str, elsewhere: str) -> None:
    (found,) = calls(f"export A=1\n{command}")
    assert found.elsewhere == elsewhere
    assert ("A" in found.environ) is (elsewhere in ("", "$RUN"))


def test_a_command_that_no_shell_runs_has_its_folder_and_variables() -> None:
    words = [literal(one) for one in ("/bin/sh", "-c", "vllm serve $A")]
    (found,) = calls_of(words, {"A": "m"}, "/srv")
    assert [one.text for one in found.arguments] == ["vllm", "serve", "m"]
    assert (found.folder, found.environ) == ("/srv", {"A": "m"})


FILES = {
    "env.sh": "CFG=good.yaml\nexport PORT=8001",
    "vars.env": "LMCACHE_CONFIG_FILE=/a.yaml\nWORDS='a b'",
    "early.sh": "CFG=good.yaml\nreturn\nCFG=bad.yaml",
    "asks.sh": "if [ -n \"$PATH\" ]; then CFG=good.yaml; return 0; fi\nCFG=bad.yaml",
    "names.sh": "CFG=$1; set -- x y",
    "ends.sh": "vllm serve m\nexit",
    "self.sh": "N=$N.; . ./self.sh",
    "sub/lib.sh": 'LIB=$(dirname "${BASH_SOURCE[0]}")\nserve_it() { vllm serve "$LIB" "$1"; }',
    "sub/far.sh": 'cd sub\n. ./near.sh',
    "sub/near.sh": "CFG=near.yaml",
    "inner.sh": '#!/usr/bin/env bash\nvllm serve --config "$CFG" --port "${1}"',
    "own.sh": '#!/bin/bash\nDIR=$(cd "$(dirname "$0")" && pwd)\nvllm serve "$DIR/m"',
    "sub/own.sh": '#!/bin/sh\nDIR=$(cd "$(dirname "$0")" && pwd)\nvllm serve "$DIR/m"',
    "plain": 'vllm serve --config "$CFG"',
}  # fmt: skip
"""What scripts source and start."""

FOLLOWED = [
    "CFG=bad.yaml\n. ./env.sh\nvllm serve --config $CFG --port $PORT",
    "CFG=bad.yaml\nsource env.sh\nvllm serve --config $CFG",
    "set -a; . ./vars.env; set +a\nexec vllm serve m $WORDS",
    "source early.sh && vllm serve --config $CFG",
    "source names.sh good.yaml\nvllm serve --config $CFG",
    'set -- first\nsource names.sh good.yaml\nvllm serve --config $CFG "$@"',
    'D=$(cd "$(dirname "$0")" && pwd)\n. "$D/env.sh"\nvllm serve --config $CFG',
    "f() { local CFG=bad.yaml; . ./env.sh; vllm serve --config $CFG; }\nf",
    ". sub/far.sh\nvllm serve --config $CFG",
    "(. sub/far.sh)\nCFG=a.yaml\nvllm serve --config $CFG",
    "cd sub; . ./near.sh; vllm serve --config $CFG",
    ". ./ends.sh\nvllm serve other",
    "export CFG=good.yaml\n./inner.sh 8000",
    "export CFG=good.yaml\nexec bash inner.sh 8000\nvllm serve other",
    "export CFG=good.yaml\nnohup env CFG=other.yaml ./inner.sh 8000",
    "CFG=good.yaml setsid -w bash -e plain",
    "cd sub; ../own.sh",
    "cd sub; bash ./own.sh",
]
"""Of these everything is known, by those files."""

NOT_FOLLOWED = [
    "CFG=bad.yaml\n. ./asks.sh\nvllm serve --config $CFG",
    "CFG=bad.yaml\n[ -f no.sh ] && . ./no.sh\nvllm serve --config $CFG",
    "CFG=bad.yaml\nsource /nowhere/site.env\nvllm serve --config $CFG",
    "CFG=bad.yaml\n[ -f env.sh ] && . ./env.sh\nvllm serve --config $CFG",
    ". sub/lib.sh\nserve_it m",
    "CFG=bad.yaml\nbash inner.sh 1",
    'export CFG=good.yaml\nbash inner.sh "$@"',
]
"""Of these something can't be told, all the same."""


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(f"{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("script", FOLLOWED)
def test_what_a_script_sources_and_starts_is_followed(script: str, files: Path) -> None:
    (found,) = calls(f"{script}\n", str(files), script_file.read)
    (started,) = run_by_bash(f"{script}\n", files)
    assert not any(one.computed for one in found.arguments)
    told = [str(Path(one.text).resolve()) if one.text[:1] == "/" else one.text
            for one in found.arguments]  # fmt: skip
    assert tuple(told[1:]) == started.args
    assert (files / (found.folder or "")).resolve() == Path(started.folder).resolve()
    if started.config_file != "unset":
        assert found.environ["LMCACHE_CONFIG_FILE"] == started.config_file
    assert found.line <= script.count("\n") + 1


@pytest.mark.parametrize("script", NOT_FOLLOWED)
def test_what_a_file_may_have_changed_is_left_open(script: str, files: Path) -> None:
    assert run_by_bash(f"{script}\n", files, "good.yaml")
    (found,) = calls(f"{script}\n", str(files), script_file.read)
    assert any(one.computed for one in found.arguments)


@pytest.mark.parametrize("start", [". ./self.sh", "for i in 1 2; do . ./self.sh; done"])
def test_files_that_source_themselves_come_to_an_end(start: str, files: Path) -> None:
    (found,) = calls(f"{start}\nvllm serve m\n", str(files), script_file.read)
    assert found.arguments[-1].text == "m"


def test_nothing_is_read_for_another_machine(files: Path) -> None:
    read: list[str] = []

    def reads(name: str) -> None:
        read.append(name)

    calls("ssh host '. ./env.sh; vllm serve m'", str(files), reads)
    calls(". $UNKNOWN; . <(echo A=1); cd $X; . ./env.sh; $RUN ./inner.sh", str(files), reads)
    assert read == []


WORDS = """vllm serve ; && || | & ( ) { } if then fi else case in esac ;; for do done while f() f .
$A ${A } $( ` source ' " \\ <<E E < > # [[ ]] (( )) A= A=( cd eval bash -c return break exit $@ !"""
BITS = st.sampled_from([*WORDS.split(), " ", "\n"])


@given(st.lists(BITS, max_size=40))
def test_no_text_is_too_odd(bits: list[str]) -> None:
    text = "".join(bits) + " " + " ".join(bits)
    assert isinstance(calls(text, "/here"), list)


def test_functions_that_call_themselves_come_to_an_end() -> None:
    assert calls("f() { f; f; f; }\nf\n") == []
    nested = "while x; do " * 90 + "vllm serve a;" + " done;" * 90
    assert all(one.line == 1 for one in calls(nested))


SET = "".join(f"V{number}=x\n" for number in range(2500))
SLOW = [
    SET + "a || b\n" * 2500,
    SET + "if a; then b; fi\n" * 2500,
    SET + "while a; do while b; do while c; do while d; do X=1; done; done; done; done\n" * 200,
    "for i in a; do\n" * 60 + 'A="$A x"\n' + "done\n" * 60,
    SET + "unset ${!V@}\n" * 500,
    SET + "[ a ] && . /nowhere/a\nA=1\n" * 500,
    "true && " * 5000 + "true\n",
]


@pytest.mark.parametrize("script", SLOW)
def test_what_is_long_is_looked_at_in_little_time(script: str) -> None:
    before = time.process_time()
    (found,) = calls(script + "vllm serve m\n")
    assert found.arguments[-1].text == "m"
    # On the slowest machine it is a second or two; it was a minute.
    assert time.process_time() - before < 10


@pytest.mark.parametrize(
    "script",
    [
        "".join(f"f{n}() {{ {'{ ' * 80} f{n + 1}; {'}; ' * 80} }}\n" for n in range(12)) + "f0\n",
        "".join(f"f{n}() {{ {f'f{n + 1}; ' * 5} }}\n" for n in range(11)) + "f0\n",
        "{ " * 200 + "vllm serve m; " + "}; " * 200,
        "A=" + "$( " * 3000 + "b" + ")" * 3000,
        "export A=1 B=2\n" + "vllm serve m\n" * 60_000,
    ],
)
def test_of_what_is_too_long_nothing_is_told(script: str) -> None:
    with pytest.raises(TooLong):
        calls(script)
