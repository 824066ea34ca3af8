"""What loading and running code imports."""

from __future__ import annotations

import pytest
from kvpatch.codebase import Codebase, Facts
from kvpatch.needs import Pair


def pair(own: dict[str, str], other: dict[str, str] | None = None, *, deep: bool = True) -> Pair:
    def code(package: str, files: dict[str, str]) -> Codebase:
        held = {path: text.encode() for path, text in files.items()}
        held.setdefault(f"{package}/__init__.py", b"")
        return Codebase(package, held.get, Facts())

    return Pair(code("own", own), code("other", other or {}), deep)


def test_a_failure_deep_down_is_found_with_its_file_and_line() -> None:
    files = {
        "own/a.py": "import os\nfrom own import b\n",
        "own/b.py": "\nfrom .c import x\n",
        "own/c.py": "x = 1\n\nfrom other import gone\n",
    }
    failure = pair(files).load("own.a")
    assert failure is not None
    assert (failure.path, failure.line, failure.why) == ("own/c.py", 3, "other has no gone")


def test_modules_that_import_each_other_load() -> None:
    files = {"own/a.py": "from own import b\n", "own/b.py": "from own.a import b\n"}
    assert pair(files).load("own.a") is None


def test_a_failure_behind_a_cycle_is_still_found() -> None:
    files = {
        "own/a.py": "from own import b\nfrom own import c\n",
        "own/b.py": "from own import a\n",
        "own/c.py": "from other import gone\n",
    }
    tried = pair(files)
    assert tried.load("own.b") is not None
    assert tried.load("own.a") is not None


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("try:\n    from other import gone\nexcept ImportError:\n    pass\n", False),
        ("try:\n    from other import gone\nexcept ImportError:\n    raise\n", True),
        ("try:\n    from other import gone\nexcept ValueError:\n    pass\n", True),
        ("try:\n    from other import gone\nexcept ImportError:\n    from other import x\n", True),
        ("if a:\n    from other import gone\nelse:\n    import os\n", False),
        ("if a:\n    from other import gone\nelse:\n    raise ValueError\n", True),
        ("from other.gone import x\n", True),
        ("import other.gone as g\n", True),
        ("from torch.gone import x\n", False),
        ("from own import gone\n", True),
        ("from own.gone import x\n", True),
        ("from other import *\n", False),
    ],
)
def test_each_way_out_of_a_failing_import(text: str, fails: bool) -> None:
    assert (pair({"own/a.py": text}).load("own.a") is not None) is fails


def test_the_first_way_says_what_is_missing_where_none_works() -> None:
    text = "try:\n    from other import one\nexcept ImportError:\n    from other import two\n"
    failure = pair({"own/a.py": text}).load("own.a")
    assert failure is not None
    assert (failure.name, failure.line) == ("one", 2)


def test_what_needs_nothing_of_the_other_is_loaded_once_for_all_pairs() -> None:
    first = pair({"own/a.py": "from own import b\n", "own/b.py": "from own import gone\n"})
    failure = first.load("own.a")
    second = Pair(first.own, Codebase("other", {}.get))
    assert second.load("own.a") is failure


def test_a_shallow_pair_takes_its_own_modules_to_load() -> None:
    files = {"own/a.py": "from own.gone import x\nfrom other import gone\n"}
    failure = pair(files, deep=False).load("own.a")
    assert failure is not None
    assert failure.why == "other has no gone"
