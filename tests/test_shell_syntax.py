"""Blocks and chains, as they stand inside of each other."""

from __future__ import annotations

from kvpatch.shell_syntax import Block, Chain, Command, Function, Kind, Node, Sequence, parsed


def shape(found: Sequence | Chain | Node) -> object:
    """A script in lists and words."""
    if isinstance(found, Command):
        return " ".join("".join(piece.text for piece in word.pieces) for word in found.words)
    if isinstance(found, Function):
        return [f"{found.name}()", *map(shape, found.body)]
    if isinstance(found, Block):
        parts = [[shape(chain) for chain in part] for part in found.parts]
        return [found.kind.value, [shape(chain) for chain in found.first], *parts]
    if isinstance(found, Chain):
        steps = [
            (operator, *map(shape, nodes)) if operator else tuple(map(shape, nodes))
            for operator, nodes in found.steps
        ]
        return [*steps, *(["&"] if found.background else [])]
    return [shape(chain) for chain in found]


def test_chains_and_pipelines_are_told_apart() -> None:
    assert shape(parsed("a b && c | d || e & ! f; g")) == [
        [("a b",), ("&&", "c", "d"), ("||", "e"), "&"],
        [("f",)],
        [("g",)],
    ]


def test_a_choice_has_what_runs_in_any_case_first() -> None:
    (chain,) = parsed("if a; then b; elif c; then d; else e; fi")
    ((_, (block,)),) = chain.steps
    assert isinstance(block, Block)
    assert block.whole
    assert shape(block) == [
        "choice",
        [[("a",)]],
        [[("b",)]],
        [[("c",)], [("d",)]],
        [[("e",)]],
    ]


def test_other_blocks() -> None:
    assert shape(parsed("while a; do b; done\n(c; d)\n{ e; }")) == [
        [(["loop", [[("a",)]], [[("b",)]]],)],
        [(["subshell", [[("c",)], [("d",)]]],)],
        [(["group", [[("e",)]]],)],
    ]
    assert shape(parsed("case x in a|b) c ;; (d) e\n;; *) esac")) == [
        [(["choice", [], [[("c",)]], [[("e",)]], []],)]
    ]
    (chain,) = parsed("for i in done do; do a; done")
    ((_, (block,)),) = chain.steps
    assert isinstance(block, Block)
    assert (block.kind, block.names) == (Kind.LOOP, ("i",))


def test_functions_in_all_their_forms() -> None:
    for text in ("f() { a; }", "f ()\n{\na\n}", "function f { a; }", "function f() { a; }"):
        assert shape(parsed(f"{text}\nb")) == [
            [(["f()", [(["group", [[("a",)]]],)]],)],
            [("b",)],
        ]


def test_words_of_the_syntax_are_that_only_where_a_command_begins() -> None:
    assert shape(parsed("echo if then fi; 'if' a")) == [[("echo if then fi",)], [("if a",)]]


def test_the_lines_before_a_quotation_without_end_are_read() -> None:
    assert shape(parsed("a\nb 'c\nd\n")) == [[("a",)]]


def test_blocks_beyond_a_depth_are_not_read() -> None:
    assert parsed("(" * 5000 + "a" + ")" * 5000)
