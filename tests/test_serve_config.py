"""vLLM's own file as words; what every release really makes of one is in test_real_serve_config."""

from __future__ import annotations

import json

import pytest
from kvpatch.serve_config import Origin, ServeConfig, converted, named
from kvpatch.yaml_source import parse_yaml
from packaging.version import Version

SERVE = ("serve", "m", "--config", "s.yaml")
MODULE = ("--model", "m", "--config", "s.yaml")


def made(text: str, vllm: str | None = "0.32.0", args: tuple[str, ...] = SERVE) -> ServeConfig:
    return converted(parse_yaml(text, "s.yaml", "vLLM"), args, Version(vllm) if vllm else None)


def words(found: ServeConfig) -> list[str]:
    return [word for word, _ in found.words]


def told(found: ServeConfig) -> str:
    (problem,) = found.problems
    return problem.message


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (("serve", "m", "--config", "a/b.yaml"), "a/b.yaml"),
        (("serve", "--config", "b.yml", "--port", "1"), "b.yml"),
        (("serve", "--config", "$1"), "$1"),
        (("serve", "m", "--configuration", "x"), None),
        (("serve", "m"), None),
    ],
)
def test_the_file_is_the_word_behind_config(args: tuple[str, ...], path: str | None) -> None:
    assert named(args) == path


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("serve", "m", "--config", "a.yaml", "--config", "b.yaml"), "2 times"),
        (("serve", "m", "--config"), "no file behind it"),
        (("serve", "m", "--config", "a.json"), ".yaml or .yml"),
        (("serve", "m", "--config", "a.YAML"), ".yaml or .yml"),
    ],
)
def test_vllm_stops_at_other_ways_to_name_it(args: tuple[str, ...], why: str) -> None:
    found = named(args)
    assert isinstance(found, ServeConfig)
    assert why in told(found)
    assert not found.known


def test_a_file_behind_an_equals_sign_is_not_read_and_sets_nothing() -> None:
    found = named(("serve", "m", "--config=a.yaml"))
    assert isinstance(found, ServeConfig)
    assert "with a space" in told(found)
    assert (found.known, found.read) == (True, False)


def test_every_word_has_the_place_of_its_key() -> None:
    found = made("# c\nport: 1\nlist: [a, b]\nnone: []\non-it: true\noff-it: false\nnull-it:\n")
    assert found.words == (
        ("--port", Origin("s.yaml", 2, 1)),
        ("1", Origin("s.yaml", 2, 1)),
        ("--list", Origin("s.yaml", 3, 1)),
        ("a", Origin("s.yaml", 3, 1)),
        ("b", Origin("s.yaml", 3, 1)),
        ("--on-it", Origin("s.yaml", 5, 1)),
        ("--null-it", Origin("s.yaml", 7, 1)),
        ("None", Origin("s.yaml", 7, 1)),
    )
    assert found.read


def test_a_mapping_is_json_from_0_16_on_and_stops_vllm_before() -> None:
    text = "kv-transfer-config:\n  kv_connector: X\n"
    newer = made(text, "0.16.0")
    assert words(newer)[0] == "--kv-transfer-config"
    assert json.loads(words(newer)[1]) == {"kv_connector": "X"}
    older = made(text, "0.15.1")
    assert "vLLM 0.15.1 stops" in told(older)
    assert older.problems[0].origin == Origin("s.yaml", 1, 1)
    assert not older.read
    unknown = made(text, None)
    assert "from 0.16.0 on" in told(unknown)
    assert unknown.read


def test_serve_makes_nothing_of_a_switch_that_is_false() -> None:
    found = made("enable_prefix_caching: false\nenforce-eager: false\n")
    assert words(found) == []
    assert found.dropped == {
        "enable-prefix-caching": Origin("s.yaml", 1, 1),
        "enforce-eager": Origin("s.yaml", 2, 1),
    }


@pytest.mark.parametrize(
    ("key", "vllm", "made_of_it"),
    [
        ("enable-prefix-caching", "0.28.0", ["--no-enable-prefix-caching"]),
        ("enable-prefix-caching", "0.27.1", []),
        ("enable_prefix_caching", "0.28.0", []),
    ],
)
def test_the_module_turns_it_off_from_0_28_on(key: str, vllm: str, made_of_it: list[str]) -> None:
    found = made(f"{key}: false\n", vllm, MODULE)
    assert words(found) == made_of_it
    assert bool(found.dropped) is not bool(made_of_it)


@pytest.mark.parametrize(
    ("text", "why", "line"),
    [
        ("", "empty", 0),
        ("# c\n", "empty", 0),
        ("- a\n", "a list; vLLM stops", 1),
        ("a\n", "a single value; vLLM stops", 1),
        ("a: 1\n---\nb: 1\n", "vLLM reads one alone", 2),
        ("a: [\n", "not YAML", 2),
        ("a: 1\n1: x\n", "in quotes", 2),
        ("a: 1\nb: 1\non: x\n", "in quotes", 3),
        ("a: 1\nx:\n  y: 2020-01-01\n", "such as a date", 2),
        ("a: 1\nx.y: true\n", "x.y: 'true'", 2),
    ],
)
def test_what_stops_vllm_is_told_with_its_line(text: str, why: str, line: int) -> None:
    found = made(text)
    assert why in told(found)
    assert found.problems[0].origin.line == line
    assert (found.known, found.read) == (False, False)


def test_an_empty_mapping_is_no_problem() -> None:
    assert made("{}\n") == ServeConfig("s.yaml")


def test_a_key_that_is_there_twice_is_told_and_the_last_one_counts() -> None:
    found = made("port: 1\nport: 2\n")
    assert words(found) == ["--port", "2"]
    assert [(one.message, one.origin.line) for one in found.twice] == [
        ("port is there already, in line 1; the last one counts", 2)
    ]
    assert found.read


@pytest.mark.parametrize(
    ("text", "args", "stops"),
    [
        ("port: 1\n", ("serve", "--config", "s.yaml"), True),
        ("model: m\n", ("serve", "--config", "s.yaml"), False),
        ("port: 1\n", ("serve", "--config", "s.yaml", "--model=m"), False),
        ("port: 1\n", ("serve", "m", "--config", "s.yaml"), False),
        ("port: 1\n", ("--config", "s.yaml"), False),
    ],
)
def test_serve_needs_a_model_from_somewhere(text: str, args: tuple[str, ...], stops: bool) -> None:
    found = made(text, args=args)
    assert bool(found.problems) is stops
    assert not stops or "model: NAME" in told(found)


@pytest.mark.parametrize(
    ("args", "vllm", "stops"),
    [
        (("--model", "m", "--config", "s.yaml"), "0.10.1", True),
        (("--config", "s.yaml"), "0.10.1", True),
        (("--model=m", "--config", "s.yaml"), "0.10.1", False),
        (("--enforce-eager", "--config", "s.yaml"), "0.10.1", False),
        (("--model", "m", "--config", "s.yaml"), "0.10.2", False),
    ],
)
def test_before_0_10_2_the_module_puts_the_options_into_the_first_one(
    args: tuple[str, ...], vllm: str, stops: bool
) -> None:
    assert bool(made("port: 1\n", vllm, args).problems) is stops


def test_dotted_names_are_not_taken_before_0_9_1() -> None:
    text = "kv-transfer-config.kv_connector: X\n"
    assert "does not take" in told(made(text, "0.9.0"))
    assert words(made(text, "0.9.1")) == ["--kv-transfer-config.kv_connector", "X"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('no-enable-prefix-caching: "true"', "a value of the switch"),
        ("enforce-eager: 1", "a value of the switch"),
        ("enforce_eager:", "a value of the switch"),
        ("enforce-eager: [true]", "a value of the switch"),
        ("no-enable-prefix-cach: x", "a value of the switch"),
        ("cc: {cudagraph_mode: NONE}", "write compilation-config"),
        ("cc.cudagraph_mode: NONE", "write compilation-config"),
        ("x-kv: {a: 1}", "vLLM has no option --x-kv"),
        ("max model len: 3", "vLLM has no option"),
        ("--port: 3", "without dashes in front"),
        ("tp: 2", "write tensor-parallel-size"),
        ("O: 0", "write optimization-level"),
        ("kv-transfer-config.x: [a, b]", "the first of a list"),
        (f"seed: 0x{'f' * 4000}", "too many digits"),
        (f"a: {{b: [0x{'f' * 4000}]}}", "too many digits"),
        (f"a: [1, 0x{'f' * 4000}]", "too many digits"),
        ('"a.\\x1b[31mb": true', "takes the word behind"),
    ],
)
def test_vllm_stops_at_what_its_options_do_not_take(line: str, why: str) -> None:
    message = told(made(f"{line}\n"))
    assert why in message
    assert message.isprintable()


def test_before_0_10_2_a_list_is_one_word() -> None:
    assert words(made("served-model-name: [a, b]\n", "0.10.1")) == [
        "--served-model-name",
        "['a', 'b']",
    ]
    assert "a value of the switch" in told(made("enforce-eager: []\n", "0.10.1"))


def test_without_a_release_a_dotted_list_is_no_error() -> None:
    (problem,) = made("kv-transfer-config.x: [a, b]\n", None).problems
    assert not problem.certain


def test_a_list_of_one_and_an_empty_one_are_taken() -> None:
    assert made("kv-transfer-config.x: [a]\nenforce-eager: []\n").problems == ()


@pytest.mark.parametrize("name", ["no-enable-prefix-caching", "no_enable_prefix_caching"])
def test_a_switch_off_that_is_false_is_dropped(name: str) -> None:
    assert set(made(f"{name}: false\n").dropped) == {"enable-prefix-caching"}
