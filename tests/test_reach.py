"""The functions that run when others do."""

from __future__ import annotations

import pytest
from kvpatch.codebase import Codebase, Facts
from kvpatch.reach import plain_name, reached, usual


def code(files: dict[str, str]) -> Codebase:
    held = {path: text.encode() for path, text in files.items()}
    return Codebase("own", {"own/__init__.py": b"", **held}.get, Facts())


def names(files: dict[str, str], start: str = "start") -> list[str]:
    own = code(files)
    place = own.resolve("own.a", start)
    assert place is not None
    return [item.name for item in reached(own, [place])]


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
    own = code(files)
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
    own = code({"own/a.py": text})
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


FACTORY = (
    "class Base(ABC):\n"
    "    def make(self): pass\n"
    "    def spare(self): pass\n"
    "class Ours(Base):\n"
    "    def make(self): needed()\n"
    "    def spare(self): never()\n"
    "class Theirs(Base):\n"
    "    def make(self): never()\n"
    "class Later(Ours):\n"
    "    def other(self): never()\n"
    "def needed(): pass\n"
    "def never(): pass\n"
)


@pytest.mark.parametrize("kind", ["Base", "'Base'", "Optional[Base]", "f.Base", "Ours"])
def test_a_method_of_a_parameter_runs_in_the_classes_that_are_built(kind: str) -> None:
    text = (
        "import own.f as f\nfrom own.f import Base, Ours\n"
        "def start():\n    manage(Ours())\n"
        f"def manage(factory: {kind}):\n    factory.make()\n"
    )
    found = names({"own/a.py": text, "own/f.py": FACTORY})
    assert found == ["start", "manage", "Ours.make", "needed"]


def test_it_does_so_whichever_comes_first_and_through_a_base_that_has_it() -> None:
    text = (
        "from typing import TYPE_CHECKING\nfrom own.f import Later\n"
        "if TYPE_CHECKING:\n    from own.f import Base\n"
        "def start(factory: 'Base'):\n    factory.make()\n    build()\n"
        "def build():\n    Later()\n"
    )
    found = names({"own/a.py": text, "own/f.py": FACTORY})
    assert found == ["start", "build", "Ours.make", "needed"]


def test_where_none_is_built_that_a_parameter_takes_nothing_of_it_runs() -> None:
    text = (
        "from own.f import Base, Theirs\n"
        "def start(factory: Base, other: Unknown, config):\n"
        "    factory.make()\n    other.make()\n    config.make()\n    factory.a.make()\n"
    )
    assert names({"own/a.py": text, "own/f.py": FACTORY}) == ["start"]
    built = "class Apart:\n    def make(self): pass\n"
    text = text.replace("    factory.make()", "    Apart()\n    factory.make()") + built
    assert names({"own/a.py": text, "own/f.py": FACTORY}) == ["start"]


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        ("Base", "Base"),
        ("f.Base | None", "f.Base"),
        ("Optional['Base']", "Base"),
        ("list[Base]", ""),
        ("", ""),
    ],
)
def test_the_name_that_an_annotation_is(annotation: str, name: str) -> None:
    assert plain_name(annotation) == name
