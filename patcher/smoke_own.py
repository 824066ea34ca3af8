"""The model that a smoke takes, seen to before an engine is started; nothing is fetched for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .diagnosis import State
from .model_checks import class_check, incurable
from .model_config import LeftOutError, read_model
from .outcome import ExitCode, KvpatchError
from .tokenizer_probe import FILES

WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
"""Names of files that vLLM loads weights from where no format is named."""
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The class of each kind of tiny model."""


def folder_of(named: str, environ: Mapping[str, str]) -> Path:
    """The absolute folder of a model: the folder named, or that of what the hub's cache has.

    Args:
        named: a path, or such as ``Qwen/Qwen3-0.6B``.
        environ: variables that say where the hub's cache is.

    Raises:
        KvpatchError: ``no-model``, exit 4.
    """
    path = Path(named).expanduser()
    if path.is_dir():
        folder = path.absolute()
    elif named.startswith(("/", ".", "~")) or named.count("/") > 1:
        raise _no_model(f"there is no model folder {path.absolute()}")
    else:
        folder = _fetched(named, _hub(environ))
    if not folder.joinpath("config.json").is_file():
        raise _no_model(f"there is no config.json in {folder}")
    return folder


def see_to(folder: Path, taken: Sequence[str]) -> None:
    """See that the model is one that can be blended, and whole enough to be started.

    Args:
        folder: the model's.
        taken: classes that the installed LMCache blends; empty where that can't be read.

    Raises:
        KvpatchError: ``bad-model``, ``model-left-out`` (exit 2); ``unsupported-model`` (exit 3);
            ``no-tokenizer``, ``no-weights`` (exit 4).
    """
    try:
        # How far a scaled rope is cured is what the smoke is to show.
        found = incurable(read_model(folder), taken, curable=True)
    except LeftOutError as error:
        found = (class_check(error.architecture, taken),)
        if found[0].state is not State.FAIL:
            raise
    for check in found:
        raise unsupported(f"{folder.name}: {check.reason}", check.todo)
    for what, names, missing in (
        ("tokenizer", FILES, "there is no tokenizer in {}, such as tokenizer.json"),
        ("weights", WEIGHTS, "there are no weights in {}, such as model.safetensors"),
    ):
        if not any(one.is_file() for name in names for one in folder.glob(name)):
            raise KvpatchError(
                f"no-{what}",
                missing.format(folder),
                f"give a model folder that holds its {what} too; nothing is downloaded",
                ExitCode.ENVIRONMENT,
            )


def see_to_kind(arch: str, taken: Sequence[str]) -> None:
    """See that a tiny model of that kind is one that can be blended.

    Raises:
        KvpatchError: ``unsupported-model``, exit 3.
    """
    if taken and CLASSES[arch] not in taken:
        able = [name for name, kind in CLASSES.items() if kind in taken]
        told = f"this LMCache does not blend {CLASSES[arch]}"
        raise unsupported(told, f"take --arch {' or '.join(able)}")


def unsupported(told: str, hint: str) -> KvpatchError:
    """The refusal of a model that LMCache can't blend."""
    return KvpatchError("unsupported-model", told, hint, ExitCode.REFUSED)


def _hub(environ: Mapping[str, str]) -> Path:
    """The folder that the hub's library keeps what it fetched in."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(environ[name]).expanduser().absolute()
    if environ.get("HF_HOME"):
        home = Path(environ["HF_HOME"])
    else:
        home = Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return home.expanduser().absolute() / "hub"


def _fetched(name: str, hub: Path) -> Path:
    """The newest snapshot of a model in the hub's cache, as the library's folders have it."""
    kept = hub / f"models--{name.replace('/', '--')}"
    try:
        commit = kept.joinpath("refs", "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        raise _no_model(
            f"there is no folder {name} here, and no model of that name in the hub's cache {hub}",
            f"fetch it with `hf download {name}`, or name a folder; nothing is downloaded here",
        ) from None
    return kept / "snapshots" / commit


def _no_model(told: str, hint: str = "") -> KvpatchError:
    return KvpatchError(
        "no-model",
        told,
        hint or "name a folder with config.json, weights and tokenizer",
        ExitCode.ENVIRONMENT,
    )
