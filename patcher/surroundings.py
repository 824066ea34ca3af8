"""Where a configuration will run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from .absence import Absence
    from .launch import Launch


@dataclass(frozen=True, eq=False, repr=False)
class Surroundings:
    """What was said of it, and what is known of it.

    Attributes:
        environ: of the process; None where nobody said.
        running: whether that is the environment of a process that runs.
        launch: the command that starts vLLM.
        vllm: its release.
        python: version of the Python that it runs on.
        gds_blends: whether the patch for GDS with blending is in place; None where nobody looked.
        absence: tells which patches that blending needs are not in place; None as before.
        config_at: where the file that LMCACHE_CONFIG_FILE names is here; empty for as written.
        ranks_agree: tells whether the patch for several ranks is there; None where nobody looked.
        on_cpu: whether the vLLM is known to be one for CPUs.
        config_changed: whether the process was started before that file was changed.
        prompt_mib: tells what the longest prompt takes on a rank; None where nobody looked.
    """

    environ: Mapping[str, str] | None = None
    running: bool = False
    launch: Launch | None = None
    vllm: Version | None = None
    python: tuple[int, ...] | None = None
    gds_blends: bool | None = None
    absence: Callable[[], Absence] | None = None
    config_at: str = ""
    ranks_agree: Callable[[], bool | None] | None = None
    on_cpu: bool = False
    config_changed: bool = False
    prompt_mib: Callable[[], int | None] | None = None
