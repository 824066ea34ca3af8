"""What loading and running code imports, and the functions that run."""

from __future__ import annotations

import pytest
from kvpatch.codebase import Codebase, Facts
from kvpatch.needs import Pair, reached, usual


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


def test_the_functions_that_run_are_followed_through_methods_classes_and_local_imports() -> None:
    files = {
        "own/a.py": (
            "class A(B):\n"
            "    def __init__(self):\n        self.go()\n"
            "    def go(self):\n        from own.c import make as m\n        m()\n"
            "        unknown.call()\n"
            "    def idle(self): pass\n"
            "class B:\n    pass\n"
        ),
        "own/c.py": (
            "class C:\n    @classmethod\n    def new(cls):\n        return cls()\n"
            "    def __init__(self): helper()\n"
            "def make():\n    return C.new()\n"
            "def helper(): pass\n"
        ),
    }
    own = pair(files).own
    place = own.resolve("own.a", "A")
    assert place is not None
    assert [item.name for item in reached(own, [place])] == [
        "A.__init__",
        "A.go",
        "make",
        "C.new",
        "C.__init__",
        "helper",
    ]


def test_calls_under_an_optional_feature_are_not_followed() -> None:
    text = (
        "def start(config):\n"
        "    if config.enable_p2p:\n        one()\n"
        "    if config.enable_blending:\n        two()\n"
        "    if not ready:\n        three()\n"
        "def one(): pass\ndef two(): pass\ndef three(): pass\n"
    )
    own = pair({"own/a.py": text}).own
    place = own.resolve("own.a", "start")
    assert place is not None
    assert [item.name for item in reached(own, [place])] == ["start", "two", "three"]
    assert [item.name for item in reached(own, [place], unless="ready")] == ["start", "two"]


@pytest.mark.parametrize(
    ("test", "passes"),
    [
        ("config.enable_blending", True),
        ("self.config.use_layerwise and x", True),
        ("config.enable_pd", False),
        ("enable_sparse", False),
        ("name == 'Flash' and (not enable_sparse)", True),
        ("_is_rocm() or device == 'xpu'", False),
        ("vllm_config.model_config is None", False),
    ],
)
def test_which_tests_blending_passes(test: str, passes: bool) -> None:
    assert usual(test) is passes
