"""The rules of ``kvpatch lint``: an id that never changes, how bad, and why it matters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from .secrecy import shown
from .spelling import one_line as one_line
from .spelling import printable as printable
from .spelling import spelt as spelt


class Level(str, Enum):
    """How bad a finding is; errors alone make the answer no."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Rule:
    """One rule. ``why`` is a sentence that says what comes of not heeding it."""

    id: str
    name: str
    level: Level
    why: str


@dataclass(frozen=True)
class Fix:
    """A change of the file that is certain: ``key`` is renamed to ``name``, or gets ``value``.

    ``kind`` is ``rename``, ``set`` or ``remove``. A rename has ``value`` too where the new key
    wants another form of it, ``changes_value`` being true then. ``comment`` is what stands behind
    the key and was meant as its value: it goes when the value comes.
    """

    kind: str
    key: str
    name: str = ""
    value: Any = None
    changes_value: bool = False
    comment: str = ""

    @property
    def sentence(self) -> str:
        """What it does, for the report."""
        if self.kind == "rename":
            return f"rename {self.key} to {self.name}"
        if self.kind == "remove":
            return f"remove {self.key}"
        return f"write {self.key}: {shown(self.key, self.value)}"


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: which.
        message: a sentence or two, with the right value where there is one.
        key: the key or variable concerned; empty for the file as a whole.
        source: ``file``, ``environment`` or ``launch``.
        line: in the file, from 1; 0 where it is not about a line.
        column: the same.
        fix: where it is certain.
        level: where this finding is less bad than its rule.
        todo: what cures it, at the end of the message too; empty where that is to change a value.
        path: of the file that it is about; empty for LMCache's own, which was checked.
    """

    rule: Rule
    message: str
    key: str = ""
    source: str = "file"
    line: int = 0
    column: int = 0
    fix: Fix | None = None
    lower: Level | None = None
    todo: str = ""
    path: str = ""

    @property
    def level(self) -> Level:
        """How bad it is."""
        return self.lower or self.rule.level


def _rule(number: str, name: str, level: Level, why: str) -> Rule:
    return Rule(f"LM{number}", name, level, why)


SYNTAX = _rule("001", "not-a-configuration", Level.ERROR, "LMCache stops at a file it can't read.")
DUPLICATE = _rule(
    "002",
    "duplicate-key",
    Level.ERROR,
    "YAML takes the last of two equal keys without a word, so one of them has no effect.",
)
EMPTY_FILE = _rule(
    "003",
    "empty-file",
    Level.NOTE,
    "LMCache takes the default of every key: chunks in CPU memory, and no blending.",
)
UNKNOWN_KEY = _rule(
    "010",
    "unknown-key",
    Level.ERROR,
    "LMCache warns of a key it does not know in its log at best, and takes the default.",
)
DEPRECATED = _rule(
    "011",
    "deprecated-key",
    Level.WARNING,
    "The old name still works, with a warning in the log, until a release drops it.",
)
MISPLACED = _rule(
    "012",
    "misplaced-key",
    Level.ERROR,
    "LMCache looks for a key at one place alone: at the top level or inside extra_config.",
)
LOST = _rule(
    "020",
    "value-lost",
    Level.ERROR,
    "A value that can't be converted becomes null, is dropped, or stops LMCache, by release.",
)
CHANGED = _rule(
    "021",
    "value-changed",
    Level.ERROR,
    "LMCache converts values in its own way; only true and 1 are true, whatever else was meant.",
)
EMPTY = _rule(
    "022",
    "empty-value",
    Level.ERROR,
    "An empty value is null and not the default, and an unquoted # starts a comment.",
)
BYTES = _rule(
    "023",
    "size-in-another-unit",
    Level.ERROR,
    "Each size has its own unit: the GDS buffer MiB, buffers of NIXL and PD bytes, others GiB.",
)
STRIPPED = _rule(
    "024",
    "separator-stripped",
    Level.ERROR,
    "Spaces belong to the separator; without them it is tokenized otherwise and never found.",
)
TURNED = _rule(
    "025",
    "turned-over",
    Level.WARNING,
    "LMCache changes this value at its start, whatever was written.",
)
STOPS = _rule("026", "refused-at-start", Level.ERROR, "LMCache's own check stops it at its start.")
IMPOSSIBLE = _rule(
    "027",
    "impossible-number",
    Level.ERROR,
    "LMCache takes the number as it is, and fails later or answers wrongly.",
)
MISNAMED = _rule(
    "028",
    "called-nothing",
    Level.ERROR,
    "LMCache knows no word for nothing but null, and takes any other for a folder or an address.",
)
NO_EFFECT = _rule(
    "029",
    "no-effect",
    Level.WARNING,
    "LMCache looks at it nowhere, or only where a switch is on, and says nothing.",
)
LAYERWISE = _rule(
    "030",
    "blending-without-layerwise",
    Level.ERROR,
    "The blender works layer by layer; without use_layerwise it is never called.",
)
CHOICE = _rule(
    "031",
    "blending-without-choice",
    Level.ERROR,
    "From LMCache 0.3.6 on both have no default, and the first blended request fails without them.",
)
UNFULL = _rule(
    "032",
    "blending-without-last-chunk",
    Level.ERROR,
    "Without save_unfull_chunk the end of each segment is never kept, and never matches.",
)
NO_BUFFER = _rule(
    "033",
    "gds-without-buffer",
    Level.ERROR,
    "The GDS buffer has no default: LMCache stops at its start with an assertion.",
)
TWO_TIERS = _rule(
    "034",
    "blending-from-two-tiers",
    Level.ERROR,
    "Loading layer by layer, as blending does, asserts that all chunks of a prompt come from one "
    "tier.",
)
NO_STAGING = _rule(
    "035",
    "no-staging-memory",
    Level.ERROR,
    "LMCache stages chunks in CPU memory also where the CPU tier is off.",
)
CORRUPTS = _rule(
    "036",
    "gds-release-corrupts",
    Level.ERROR,
    "LMCache 0.3.7 to 0.5.4rc2 pairs GDS chunks with wrong keys under load: wrong answers. From "
    "0.4.4 on kvpatch's patch KV009 cures that.",
)
HASH = _rule(
    "037",
    "hash-algorithm",
    Level.ERROR,
    "LMCache takes Python's own hash for a name that it does not know, and before 0.4.6 formats "
    "the bytes of others as an integer.",
)
SEED = _rule(
    "038",
    "hash-seed",
    Level.ERROR,
    "Keys hang on Python's hash: without one PYTHONHASHSEED nothing stored is found again.",
)
NO_TIER = _rule(
    "039",
    "nothing-stored",
    Level.WARNING,
    "With no tier nothing is kept, and no request ever hits.",
)
GDS_PATH = _rule(
    "040",
    "gds-path",
    Level.ERROR,
    "LMCache creates a missing folder where it is told, on whatever file system is there.",
)
GDS_BLEND = _rule(
    "041",
    "gds-and-blending",
    Level.WARNING,
    "No LMCache release loads layer by layer from GDS by itself, as blending does.",
)
SEPARATOR = _rule(
    "042",
    "no-separator",
    Level.ERROR,
    "Without a separator LMCache can't cut a prompt into chunks to blend.",
)
PATCHES = _rule(
    "043",
    "blending-without-patches",
    Level.WARNING,
    "No pair of releases blends by itself: the engine fails at its start or at the first blend. "
    "From vLLM 0.26 on none moves the KV cache layer by layer: the first stored request fails. "
    "Other faults need no blending, such as those of requests that vLLM preempts.",
)
APART = _rule(
    "044",
    "numbers-apart",
    Level.WARNING,
    "LMCache takes numbers as they are, and ignores without a word what does not fit another.",
)
UNLOADED = _rule(
    "045",
    "not-loaded-layer-by-layer",
    Level.ERROR,
    "A prompt with a chunk from there stops the engine, or nothing of what is kept there is used.",
)
NO_DISK = _rule(
    "046",
    "disk-without-size",
    Level.ERROR,
    "LMCache makes a disk tier only where max_local_disk_size is above 0, and says nothing.",
)
TWO_LAYERS = _rule(
    "047",
    "several-check-layers",
    Level.WARNING,
    "A check layer compares a whole prompt, and behind the first one only chosen tokens are left.",
)
LOOKUP = _rule(
    "048",
    "lookup-without-segments",
    Level.ERROR,
    "Blending looks prompts up by their segments: LMCache stops, the engine dies at a blend, or "
    "nothing that is kept is found.",
)
REMOTE_URL = _rule(
    "049",
    "remote-url",
    Level.ERROR,
    "LMCache logs that it found no adapter, goes on without a connection, and no request ever hits "
    "what should be there.",
)
PREFIX = _rule(
    "050",
    "prefix-caching",
    Level.ERROR,
    "With vLLM's prefix caching on, tensor sizes differ and the engine dies at a blend.",
)
GRAPHS = _rule(
    "051",
    "cuda-graphs",
    Level.ERROR,
    "LMCache stores and loads layer by layer between attention layers; full CUDA graphs skip that, "
    "and with vLLM's Model Runner V2 any load of a fully cached prompt: wrong answers.",
)
CONNECTOR = _rule(
    "052",
    "connector",
    Level.ERROR,
    "Without LMCache's connector vLLM never reads the configuration.",
)
OFFLOADING = _rule(
    "053",
    "two-connectors",
    Level.ERROR,
    "--kv-offloading-backend and --kv-transfer-config each choose the connector.",
)
MEMORY = _rule(
    "054",
    "gpu-memory",
    Level.WARNING,
    "No vLLM release counts the GDS buffer when it shares out GPU memory.",
)
OVERRIDE = _rule(
    "055",
    "unknown-override",
    Level.ERROR,
    "LMCache ignores an unknown lmcache.KEY in vLLM's extra config.",
)
KV_DTYPE = _rule(
    "056",
    "kv-cache-dtype",
    Level.ERROR,
    "Blending moves the KV cache layer by layer; from vLLM 0.26 on a patch does, in bfloat16, "
    "float16 and float32 alone.",
)
SERVE_CONFIG = _rule(
    "057",
    "serve-config",
    Level.ERROR,
    "vLLM stops at its start, or runs without what the file of --config says.",
)
SERVE_UNREAD = _rule(
    "058",
    "serve-config-not-read",
    Level.WARNING,
    "Options in the file of --config are not known here, so none was taken for missing.",
)
SERVE_UNKNOWN = _rule(
    "059",
    "command-not-known",
    Level.WARNING,
    "Options of the command are not known here, so none was taken for missing.",
)
OTHER_FILE = _rule(
    "060",
    "other-file",
    Level.ERROR,
    "LMCache reads the one file that LMCACHE_CONFIG_FILE names in its own process, at its start.",
)
IGNORED = _rule(
    "061",
    "variable-ignored",
    Level.WARNING,
    "Up to LMCache 0.3.5 variables count only where there is no file.",
)
LOOK_ALIKE = _rule(
    "062",
    "look-alike-variable",
    Level.ERROR,
    "LMCache says nothing of a variable that it does not read.",
)
OVERRULED = _rule(
    "063", "overruled", Level.NOTE, "A variable beats the file, and vLLM's extra config beats both."
)
WITHHELD = _rule(
    "064",
    "not-handed-on",
    Level.WARNING,
    "LMCache reads its variables in vLLM's own process, which has those that are exported to it.",
)
ROLE = _rule(
    "065",
    "role-stores-nothing",
    Level.WARNING,
    "LMCache stores nothing where kv_role is kv_consumer: it only loads what other processes keep.",
)
TENSOR_PARALLEL = _rule(
    "070",
    "blending-on-several-ranks",
    Level.ERROR,
    "Each tensor-parallel rank recomputes other tokens, picked by its own heads, and their results "
    "are added row by row: wrong answers, without an error.",
)
PIPELINE_PARALLEL = _rule(
    "071",
    "blending-in-stages",
    Level.ERROR,
    "LMCache's blender wants every layer of the model in its process; the engine stops at its "
    "start.",
)
LORA = _rule(
    "072",
    "lora",
    Level.ERROR,
    "LMCache's keys name no adapter, so that one adapter gets what was computed with another; and "
    "its blender runs LoRA layers that are set up for another batch: on a CPU the engine dies.",
)
CONTEXT_PARALLEL = _rule(
    "073",
    "context-parallel",
    Level.ERROR,
    "vLLM then lets each block stand for that many times its tokens, of which each rank holds a "
    "part; LMCache's connector goes by the block size of one rank, and keeps nothing or stops.",
)
ATTENTION = _rule(
    "074",
    "attention-backend",
    Level.ERROR,
    "LMCache's blender is built for vLLM's FlashAttention alone, and stops the engine at its start "
    "with another: Attention backend ... is not supported in LMCache.",
)
EMBEDS = _rule(
    "075",
    "prompt-embeds",
    Level.ERROR,
    "LMCache's connector counts the tokens of each request, and one that is given as embeddings "
    "has none: object of type 'NoneType' has no len().",
)
LOAD_CAP = _rule(
    "076",
    "load-cap",
    Level.ERROR,
    "LMCache cuts a hit to whole chunks of that many tokens; blended segments end anywhere, and "
    "the engine dies at the first blend, or stops at its start with KV008.",
)
NO_GPU = _rule(
    "077",
    "blending-without-a-gpu",
    Level.WARNING,
    "LMCache's blender runs on CUDA and XPU alone; `kvpatch smoke` stands in for that, and a "
    "server for CPUs stops at its start.",
)
FORGOTTEN = _rule(
    "080",
    "forgotten-at-restart",
    Level.NOTE,
    "What LMCache wrote to local_disk it knows in its own process alone, and it never looks what "
    "files are there.",
)

SECOND = "LMCache stops at the first blend in the second check layer"
"""What comes of two: at the first one it leaves all tokens but those chosen."""

ALL: tuple[Rule, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Rule))
