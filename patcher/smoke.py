"""``kvpatch smoke``: proves CacheBlend by running it, with a GPU or without."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from . import outputs, render, smoke_own, templates
from . import smoke_settings as wanted
from .curing import pair_on
from .fsops import Disk
from .host import Where
from .model_config import read_model
from .outcome import ExitCode, KvpatchError, Report
from .pair_checks import models_of
from .remedy import remedy
from .schema_source import read_schema
from .sizing import Wanted
from .smoke_bench import Bench
from .smoke_checks import judge
from .smoke_gpu import on_a_gpu, takes_graphs
from .smoke_measure import Measured, Start
from .smoke_orders import Orders
from .smoke_pair import Pair, choose_device, find
from .smoke_report import report, unable
from .smoke_witness import FAULTS
from .stopping import stoppable
from .trial import scratch

Say = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """What the user said about how to smoke."""

    profile: str | None = None
    config: Path | None = None
    model: str | None = None
    device: str = "auto"
    ratios: tuple[float, ...] = ()
    timeout: float = 900.0
    keep: Path | None = None
    html: Path | None = None
    arch: str = "llama"
    rope: str = "default"
    tokenizer: str = "bos"
    gds: bool = False
    fault: str = ""


def smoke(where: Where, choice: Choice, disk: Disk, say: Say) -> Report:
    """Start the real engines and judge what they answer.

    Raises:
        KvpatchError: it could not be run at all.
    """
    begin = time.monotonic()
    choice = _sensible(choice)
    with stoppable(), _folder(choice.keep) as folder:
        # The page may go into the folder that is kept.
        outputs.ready(choice.html)
        pair, device = runnable(where, choice, disk)
        settings = _settings(pair, choice, folder)
        measured = _measure(pair, choice, settings, device, folder, say)
        error = unable(measured)
        if error is not None:
            raise error
        checks = judge(measured)
    seconds = time.monotonic() - begin
    way = remedy(where, disk) if any(check.ok is False for check in checks) else None
    return report(pair_data(pair, device, choice), measured, checks, seconds, choice.html, way)


def runnable(where: Where, choice: Choice, disk: Disk) -> tuple[Pair, str]:
    """The pair and the device that would be run, as far as that is known without an engine.

    Raises:
        KvpatchError: they can't be run, or LMCache does not blend that model.
    """
    pair = find(where, disk)
    _see_to_model(pair, choice)
    return pair, choose_device(choice.device, pair)


def _sensible(choice: Choice) -> Choice:
    """The choice, with a model's folder as an absolute path.

    Raises:
        KvpatchError: it contradicts itself (exit 2), or names what can't be read (exit 4).
    """
    if choice.config is not None and choice.profile is not None:
        raise KvpatchError(
            "two-configurations",
            "--config and --profile both give a configuration",
            "give one of the two",
            ExitCode.USAGE,
        )
    if choice.fault and choice.fault not in FAULTS:
        raise KvpatchError(
            "unknown-fault",
            f"there is no fault {choice.fault!r} to plant",
            f"take one of: {', '.join(FAULTS)}",
            ExitCode.USAGE,
        )
    if choice.profile is not None:
        _see_to_blending(templates.load(choice.profile))
    if choice.config is not None:
        # Said before the environment is asked, which takes seconds.
        wanted.read_config(choice.config)
    if choice.model is not None:
        folder = smoke_own.folder_of(choice.model, os.environ)
        choice = replace(choice, model=str(folder))
    return choice


def _see_to_blending(template: templates.Template) -> None:
    """See that a profile has something to prove.

    Raises:
        KvpatchError: ``no-blending``, exit 2.
    """
    if template.blends:
        return
    blending = [name for name in templates.names() if templates.load(name).blends]
    raise KvpatchError(
        "no-blending",
        f"the profile {template.name} does not blend, and blending is what smoke proves",
        f"take one of: {', '.join(blending)}",
        ExitCode.USAGE,
    )


def _see_to_model(pair: Pair, choice: Choice) -> None:
    """See that this LMCache blends what is to be served, which takes no engine to know."""
    taken = models_of(pair.host.tree)
    if choice.model is None:
        smoke_own.see_to_kind(choice.arch, taken)
    else:
        smoke_own.see_to(Path(choice.model), taken)


def _settings(pair: Pair, choice: Choice, folder: Path) -> wanted.Settings:
    read = partial(pair.host.tree.content, "lmcache")
    gds_path = folder / "gds"
    if choice.config is not None:
        values = wanted.read_config(choice.config)
    elif choice.profile is not None:
        keys = read_schema(read, str(pair.lmcache))
        of = pair_on(pair.host, pair.lmcache, pair.vllm)
        given = {"gds_path": "/gds"} if templates.load(choice.profile).gds else {}
        model = None if choice.model is None else read_model(Path(choice.model))
        made = render.render(choice.profile, keys, of, given, Wanted(model=model))
        values = yaml.safe_load(made.text)
    else:
        keys = read_schema(read, str(pair.lmcache))
        values = wanted.basic(keys.has, gds_path=gds_path if choice.gds else None)
    if values.get("gds_path") is not None:
        # Never into a store that somebody uses.
        gds_path.mkdir()
        values["gds_path"] = str(gds_path)
    return wanted.settings(wanted.modest(values) if choice.model is None else values)


def _measure(
    pair: Pair, choice: Choice, settings: wanted.Settings, device: str, folder: Path, say: Say
) -> Measured:
    cpu, tiny = device == "cpu", choice.model is None
    bench = Bench(
        folder=folder,
        python=pair.python,
        deadline=time.monotonic() + choice.timeout,
        harness=cpu,
        own_model=not tiny,
        say=say,
    )
    bench.prepare()
    connector = {
        **templates.load("blend").connector(templates.Pair(pair.lmcache, pair.vllm)),
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"use_layerwise": True},
    }
    room = wanted.TINY
    if choice.model is not None:
        room = wanted.room(settings, read_model(Path(choice.model)))
    spec = {"arch": choice.arch, "rope": choice.rope, "tokenizer": choice.tokenizer}
    orders = Orders(
        folder=folder,
        model=str(folder / "model") if choice.model is None else choice.model,
        spec=spec if tiny else None,
        cpu=cpu,
        graphs=takes_graphs(pair.vllm),
        settings=settings,
        connector=connector,
        room=room,
        fault=choice.fault,
        originals=pair.originals,
    )
    nothing = Start("none", None, 0.0)
    found: dict[str, Start] = {}

    def measured() -> Measured:
        return Measured(
            reference=found.get("reference", nothing),
            blend=found.get("blend", nothing),
            layerwise=found.get("layerwise", nothing),
            ratio=settings.ratio,
            rope=choice.rope if tiny else "",
            chunk_size=settings.chunk_size,
            gds=settings.gds,
            store=found.get("store"),
            journal=bool(pair.originals),
        )

    last = [orders.blend(choice.ratios), orders.layerwise()]
    # The reference is alone, because the time of all the others is set against its own.
    rounds = [[orders.reference()], *([[orders.store()]] if settings.gds else ())]
    rounds += [last] if together(cpu, tiny, cores()) else [[engine] for engine in last]
    for engines in rounds:
        for start in bench.start_together(engines):
            found[start.role] = start
        if unable(measured()) is not None:
            break
    return measured()


def together(cpu: bool, tiny: bool, count: int) -> bool:
    """Whether engines that need nothing of each other run at once.

    Two of a GPU's engines would want the same memory, and so would two of a user's model.
    """
    return cpu and tiny and count > 1


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def pair_data(pair: Pair, device: str, choice: Choice) -> dict[str, Any]:
    """What was run, for the report."""
    return {
        "python": str(pair.python),
        "vllm": str(pair.vllm),
        "distribution": pair.distribution,
        "lmcache": str(pair.lmcache),
        "device": device,
        "on_a_gpu": dict(on_a_gpu(pair.vllm, choice.arch if choice.model is None else None)),
        "model": choice.model,
        "arch": None if choice.model else choice.arch,
        "rope": None if choice.model else choice.rope,
        "tokenizer": None if choice.model else choice.tokenizer,
    }


def _folder(keep: Path | None) -> contextlib.AbstractContextManager[Path]:
    """A folder that goes away, or the one that is to be kept."""
    return scratch() if keep is None else outputs.new_folder(keep)
