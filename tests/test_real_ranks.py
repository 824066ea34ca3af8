"""Real engines of one and of two tensor-parallel ranks that blend, with KV012 and without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import kvpatch
from kvpatch import smoke_bench
from targets import target

CHILD = Path(__file__).with_name("blend_on_ranks.py")
CONFIG = {
    "chunk_size": 64,
    "local_cpu": True,
    "max_local_cpu_size": 1.0,
    "enable_blending": True,
    "use_layerwise": True,
    "blend_special_str": " # # ",
    "blend_min_tokens": 64,
    "blend_recompute_ratios": [1.0],
    "blend_check_layers": [1],
    "save_unfull_chunk": True,
}
ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Run:
    """The next token's distribution of each request, and what each rank picked at each."""

    answers: dict[tuple[str, float], list[float]]
    picks: list[list[list[int]]]


def patched(folder: Path, *options: str) -> Path:
    """The interpreter of a patched copy of the environment."""
    shutil.copytree(target().parents[1], folder, symlinks=True, copy_function=os.link)
    python = folder / "bin" / "python"
    assert kvpatch("apply", "--python", python, *options).code == 0
    return python


def run(folder: Path, python: Path, ranks: int) -> Run:
    code = folder / "code"
    code.mkdir(parents=True)
    for one in Path(smoke_bench.__file__).parent.glob("smoke_*.py"):
        shutil.copy(one, code)
    config = folder / "lmcache.yaml"
    config.write_text(json.dumps(CONFIG))
    environ = {"PYTHONPATH": str(code), "LMCACHE_CONFIG_FILE": str(config), **ENVIRON}
    done = subprocess.run(
        [python, "-B", CHILD, folder, str(ranks)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith('[["one-token"')]
    answers = {(name, ratio): told for name, ratio, told in json.loads(lines[-1])}
    files = [folder / f"rank-{rank}.jsonl" for rank in range(ranks)]
    picks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return Run(answers, picks)


def gaps(one: Run, other: Run) -> dict[tuple[str, float], float]:
    """The largest difference of log probabilities, request by request."""
    return {
        asked: max(abs(a - b) for a, b in zip(told, other.answers[asked], strict=True))
        for asked, told in one.answers.items()
    }


@pytest.mark.stack
def test_two_ranks_answer_as_one_and_do_not_without_the_patch(tmp_path: Path) -> None:
    python = patched(tmp_path / "env")
    alone = run(tmp_path / "one", python, 1)
    both = run(tmp_path / "two", python, 2)
    assert both.picks == alone.picks * 2
    assert max(gaps(alone, both).values()) < 1e-3

    without = run(tmp_path / "apart", patched(tmp_path / "bare", "--skip", "KV012"), 2)
    partial = [asked for asked in alone.answers if asked[1] < 1]
    assert len(partial) == 6
    apart = [first for first, second in zip(*without.picks, strict=True) if first != second]
    assert len(apart) == len(partial)
    assert min(gaps(alone, without)[asked] for asked in partial) > 0.3
