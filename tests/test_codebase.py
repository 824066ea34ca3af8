"""Names followed through modules, packages, stars and hooks."""

from __future__ import annotations

import pytest
from kvpatch.codebase import Codebase, Facts, Place
from kvpatch.outcome import KvpatchError

FILES = {
    "p/__init__.py": "from .a import A\nfrom p.nowhere import B\nfrom torch import nn\n",
    "p/a.py": "class A(Base):\n    def own(self): pass\n\nfrom .base import Base\n",
    "p/base.py": "class Base:\n    x = 1\n    def __init__(self, y): self.y = y\n",
    "p/star.py": "from .a import *\nfrom .base import _hidden\n",
    "p/loop.py": "from .pool import x\n",
    "p/pool.py": "from .loop import x\n",
    "p/net.py": "from torch import nn\nclass Net(nn.Module):\n    z = 1\nclass Lost(Gone): pass\n",
    "p/deep/__init__.py": "from .. import a\nfrom ..base import Base as B2\n",
}


@pytest.fixture
def code() -> Codebase:
    files = {path: text.encode() for path, text in FILES.items()}
    return Codebase("p", files.get, Facts(), lambda module: module in ("p._C", "p.space"))


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        ("p", "A", ("p.a", "A")),
        ("p", "B", None),
        ("p", "nn", ("torch", "nn")),
        ("p", "star", ("p.star", "")),
        ("p", "_C", ("p._C", "")),
        ("p.star", "A", ("p.a", "A")),
        ("p.star", "Base", ("p.base", "Base")),
        ("p.loop", "x", None),
        ("p.deep", "a", ("p.a", "")),
        ("p.deep", "B2", ("p.base", "Base")),
        ("p.nowhere", "x", None),
        ("p._C", "anything", ("p._C", "anything")),
    ],
)
def test_a_name_is_followed_to_where_it_is_defined(
    code: Codebase, module: str, name: str, found: tuple[str, str] | None
) -> None:
    place = code.resolve(module, name)
    assert (place and (place.module, place.name)) == found


def test_modules_exist_as_source_as_extension_and_as_bare_folder(code: Codebase) -> None:
    names = ["p", "p.a", "p.deep", "p._C", "p.space", "p.x", "q"]
    assert [code.exists(name) for name in names] == [True, True, True, True, True, False, False]


def test_members_come_through_the_bases(code: Codebase) -> None:
    place = code.resolve("p", "A")
    assert place is not None
    members = code.members(place)
    assert members is not None
    assert set(members) == {"own", "x", "y", "__init__"}
    assert members["x"].path == "p/base.py"
    maker = code.function_at(place)
    assert maker is not None
    assert maker.signature.positional == ("self", "y")


def test_a_class_has_itself_and_its_bases_for_a_lineage(code: Codebase) -> None:
    place = code.resolve("p.a", "A")
    assert place is not None
    assert code.lineage(place) == {("p.a", "A"), ("p.base", "Base")}
    net = code.resolve("p.net", "Net")
    assert net is not None
    assert code.lineage(net) == {("p.net", "Net")}


def test_a_base_of_another_package_leaves_members_open_and_a_lost_one_unknown(
    code: Codebase,
) -> None:
    net = code.members(Place("", 0, "p.net", "Net"))
    assert net is not None
    assert set(net) == {"*", "z"}
    assert code.members(Place("", 0, "p.net", "Lost")) is None


def test_facts_are_read_once_for_each_text_and_few_trees_are_kept() -> None:
    facts = Facts()
    texts = [f"x = {number}\n".encode() for number in range(100)]
    assert all(facts.of(text) is facts.of(text) for text in texts)
    assert len(facts.modules) == 100
    assert len(facts._trees) < 60
    assert facts.of(b"def (") is None


def test_a_file_that_cant_be_parsed_is_named_and_may_hold_any_name() -> None:
    code = Codebase("p", {"p/__init__.py": b"def ("}.get)
    assert code.resolve("p", "whatever") is not None
    assert code.unread == ["p/__init__.py"]


def test_what_is_asked_once_is_not_asked_again(code: Codebase) -> None:
    answers = iter([1, 2])
    assert [code.once("key", lambda: next(answers)) for _ in range(3)] == [1, 1, 1]


def test_a_file_that_could_not_be_read_is_no_answer_for_later() -> None:
    files = {path: text.encode() for path, text in FILES.items()}
    down = True

    def reading(path: str) -> bytes | None:
        if down and path == "p/base.py":
            raise KvpatchError("no-network", "it is down", "try again")
        return files.get(path)

    code = Codebase("p", reading, Facts())
    with pytest.raises(KvpatchError, match="it is down"):
        code.resolve("p.star", "Base")
    down = False
    assert code.resolve("p.star", "Base") == Codebase("p", files.get, Facts()).resolve(
        "p.star", "Base"
    )
