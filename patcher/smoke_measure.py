"""What a smoke measured: its engines' starts, their answers, and how far these are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Rounding is told apart from error by what rounding was seen to do, times this.
SAFETY = 4.0
# Prompts that are others under a name of their own.
SAME = {"twice": "store", "together-inside": "reordered-0", "together-after": "new-chunk"}
# Whether it holds (None: not checked), what was found, what is allowed, and that in words.
Verdict = tuple[bool | None, object, object, str]


@dataclass(frozen=True)
class Answer:
    """One request as an engine answered it: what was asked, and the next token's log-probs."""

    prompt: str
    logprobs: Sequence[float]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """A fact about it, None where there is none."""
        return self.facts.get(name)


@dataclass(frozen=True)
class Start:
    """One start of an engine: how it ended, how far it came, and what it answered."""

    role: str
    code: int | None
    seconds: float
    result: Mapping[str, Any] = field(default_factory=dict)
    answers: tuple[Answer, ...] = ()
    output: str = ""

    @property
    def done(self) -> bool:
        """Whether it did all that was ordered."""
        return self.code == 0 and self.result.get("stage") == "done"

    @property
    def alone(self) -> bool:
        """Whether it answered all that was sent alone, whatever came after that."""
        return self.done or self.result.get("stage") == "together"

    @property
    def up(self) -> bool:
        """Whether the engine came up."""
        return "requests" in self.result.get("stages", {})

    @property
    def events(self) -> Sequence[str]:
        """Who came when: ``registered``, ``connector:worker``, ``blender``."""
        found: Sequence[str] = self.result.get("events", ())
        return found

    def cached(self, prompt: str) -> int:
        """How many of a prompt's tokens a full cache gives back."""
        return int(self.result.get("prompts", {}).get(prompt, {}).get("cached", 0))

    def length(self, prompt: str) -> int:
        """A prompt's tokens."""
        return int(self.result.get("prompts", {}).get(prompt, {}).get("length", 0))


@dataclass(frozen=True)
class Distance:
    """How far one next-token distribution is from another (nats)."""

    most: float
    mean: float
    divergence: float
    same_first: bool


def distance(reference: Sequence[float], other: Sequence[float]) -> Distance:
    """Of two whole distributions, as log-probs of the same tokens.

    Raises:
        ValueError: they are of different vocabularies.
    """
    pairs = list(zip(reference, other, strict=True))
    gaps = [_gap(a, b) for a, b in pairs]
    divergence = math.fsum(math.exp(a) * (a - b) for a, b in pairs if a != b)
    first = max(range(len(reference)), key=reference.__getitem__)
    return Distance(
        max(gaps),
        math.fsum(gaps) / len(gaps),
        max(divergence, 0.0),
        first == max(range(len(other)), key=other.__getitem__),
    )


def _gap(one: float, other: float) -> float:
    """How far two log-probs are apart: whatever is no number, as far as can be."""
    if one == other:
        return 0.0
    gap = abs(one - other)
    return math.inf if math.isnan(gap) else gap


@dataclass(frozen=True)
class Gap:
    """The price of one recompute ratio over a set of prompts.

    ``filled``: with the zeros that LMCache leaves at separators filled in.
    """

    ratio: float
    filled: bool
    most: float
    mean: float
    divergence: float
    agreement: float

    def data(self) -> Mapping[str, float]:
        """As it stands in ``data.gaps``."""
        return {
            "ratio": self.ratio,
            "separators_filled": self.filled,
            "max_logprob_gap": self.most,
            "mean_logprob_gap": self.mean,
            "kl": self.divergence,
            "top1_agreement": self.agreement,
        }


@dataclass(frozen=True)
class Measured:
    """All that a smoke measured: its starts by role, and what was asked for."""

    reference: Start
    blend: Start
    layerwise: Start
    ratio: float
    rope: str = "default"
    chunk_size: int = 256
    gds: bool = False
    store: Start | None = None
    journal: bool = False

    def cold(self, prompt: str) -> Sequence[float] | None:
        """The next token's log-probs without any cache."""
        name = SAME.get(prompt, prompt)
        for answer in self.reference.answers:
            plain = not answer.get("jitter") and not answer.get("originals")
            if answer.prompt == name and plain:
                return answer.logprobs
        return None

    def off(self, answer: Answer) -> Distance:
        """How far an answer is from the one without cache.

        Raises:
            LookupError: that was never asked.
        """
        cold = self.cold(answer.prompt)
        if cold is None:
            raise LookupError(answer.prompt)
        return distance(cold, answer.logprobs)

    @property
    def rounding(self) -> float:
        """The largest change (nats) that one rounding error in every part made in cold runs."""
        shaken = [self.off(a).most for a in self.reference.answers if a.get("jitter")]
        return max(shaken, default=0.0)

    @property
    def tolerance(self) -> float:
        """The largest difference (nats) that is taken for rounding."""
        return SAFETY * self.rounding

    def blended(self, prompt: str = "", **facts: object) -> list[Answer]:
        """The blending engine's answers of that prompt (by its start) and with these facts."""
        return [
            answer
            for answer in self.blend.answers
            if answer.prompt.startswith(prompt)
            and all(answer.get(name) == value for name, value in facts.items())
        ]

    def undivided(self) -> list[Answer]:
        """The blending engine's answers to prompts that were computed in one step."""
        return [a for a in self.blend.answers if not a.prompt.startswith("together-")]

    def gaps(self) -> list[Gap]:
        """What each recompute ratio costs, in the order of the ratios."""
        asked = {(bool(a.get("fill")), float(a.get("ratio"))) for a in self.blended(sweep=True)}
        return [self._gap(ratio, filled) for filled, ratio in sorted(asked)]

    def _gap(self, ratio: float, filled: bool) -> Gap:
        found = [self.off(a) for a in self.blended(sweep=True, ratio=ratio, fill=filled)]
        count = len(found)
        return Gap(
            ratio,
            filled,
            max(one.most for one in found),
            math.fsum(one.mean for one in found) / count,
            math.fsum(one.divergence for one in found) / count,
            sum(one.same_first for one in found) / count,
        )


def within(measured: Measured, found: Sequence[Answer]) -> Verdict:
    """Whether these answers are those without cache, up to rounding."""
    if not found:
        return False, None, None, "it was never answered"
    most, limit = max(measured.off(a).most for a in found), measured.tolerance
    return most <= limit, most, limit, f"largest difference {most:.2g} nats, allowed {limit:.2g}"


def found_and_within(measured: Measured, prompt: str) -> Verdict:
    """The same of one prompt's, and whether all that is cached of it was retrieved."""
    found = measured.blended(prompt)
    got = min((int(a.get("retrieved") or 0) for a in found), default=0)
    wanted = measured.blend.cached(prompt)
    ok, most, limit, seen = within(measured, found)
    return ok and got >= wanted, most, limit, f"retrieved {got} of {wanted}; {seen}"


def failure(start: Start) -> str:
    """How a start that didn't do all went wrong, in a sentence."""
    stage = start.result.get("stage", "begin")
    error = start.result.get("error")
    if start.result.get("broken"):
        # What LMCache and vLLM made of it says less.
        return f"{start.result['broken']} (at stage {stage})"
    if error:
        lines = [line.strip() for line in str(error["text"]).splitlines() if line.strip()]
        where = f" in {error['where']}" if error.get("where") else ""
        words = f": {lines[0]}" if lines else ""
        return f"{error['type']}{where}{words} (at stage {stage})"
    if start.code is None:
        return f"it hung at stage {stage} and was ended after {start.seconds:.0f} s"
    if start.code < 0:
        return f"it was killed by signal {-start.code} at stage {stage}"
    return f"it ended with {start.code} at stage {stage}"
