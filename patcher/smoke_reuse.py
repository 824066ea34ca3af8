"""Whether a blender reused what it had loaded, and in which state: what ratio 1 can't show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .smoke_measure import SAFETY, Answer, Measured, Verdict, distance, within

# Of moved keys, in norms of a row. Seen on a CPU: 2e-7 in float32 and 6e-3 in bfloat16; what is not
# moved is off by 1.4.
LIMITS = {"float32": 1e-3}
LIMIT = 3e-2
PARTS = {
    "reused": "tokens that are reused",
    "anew": "tokens that are computed anew",
    "separators": "separators",
}


def reused(measured: Measured) -> Verdict:
    """Whether the asked share of rows was computed anew, no more and no less, and that shows."""
    found = [a for a in measured.undivided() if a.get("retrieved") and a.get("ratio") is not None]
    below = [a for a in found if a.get("ratio") < 1]
    if not below:
        return None, None, None, "not checked: no ratio below 1 was asked for"
    for answer in found:
        wrong = _wrong_rows(answer)
        if wrong is not None:
            return False, *wrong
    ratio = min(a.get("ratio") for a in below)
    apart = max(_from_whole(measured, a) for a in below if a.get("ratio") == ratio)
    # Of a model that is not random, nothing is known of how far it has to be. In bfloat16 the
    # tolerance is as large as what blending costs.
    limit = measured.rounding if measured.rope else 0.0
    answer = min(below, key=lambda one: abs(one.get("ratio") - measured.ratio))
    seen = (
        f"at {answer.get('ratio'):g}: {_rows(answer)[-1]} of {answer.get('asked')} tokens computed "
        f"anew; answers at {ratio:g} and 1 differ by {apart:.2g} nats"
    )
    if apart > limit:
        return True, apart, limit, seen
    return False, apart, limit, f"{seen}, which is rounding: nothing is reused"


def _rows(answer: Answer) -> Sequence[int]:
    """Rows of each layer from the check layer on."""
    check = answer.get("check") or 0
    rows, layers = answer.get("rows") or (), answer.get("layers") or ()
    return [count for layer, count in zip(layers, rows, strict=True) if layer >= check]


def _wrong_rows(answer: Answer) -> tuple[object, object, str] | None:
    """What was computed anew, what had to be, and that said; None where it is right."""
    ratio, asked = float(answer.get("ratio")), int(answer.get("asked") or 0)
    check, rows = answer.get("check") or 0, _rows(answer)
    # What isn't cached may be computed anew beyond the share.
    most = min(ratio * asked + asked - int(answer.get("retrieved")) + 1, asked)
    least = min(ratio * asked - 1, asked)
    wrong = [index for index, count in enumerate(rows) if not least <= count <= most]
    if rows and not wrong:
        return None
    wanted = max(int(ratio * asked), 1)
    if not rows:
        return None, wanted, f"no layer from {check} on was seen to compute anything"
    layer, count = check + wrong[0], rows[wrong[0]]
    seen = (
        f"at ratio {ratio:g} LMCache's blender computes {count} of {asked} tokens anew from layer "
        f"{layer} on, where {wanted} were asked for"
    )
    return count, wanted, f"{seen}; nothing is reused" if count == asked else seen


def _from_whole(measured: Measured, answer: Answer) -> float:
    """How far (nats) an answer is from that to the same at ratio 1."""
    same = {"ratio": 1.0, "fill": answer.get("fill")}
    whole = [a for a in measured.blended(answer.prompt, **same) if a.prompt == answer.prompt]
    return max((distance(a.logprobs, answer.logprobs).most for a in whole), default=0.0)


def moved(measured: Measured) -> Verdict:
    """In every layer: what isn't computed anew is what was stored, turned to its new place."""
    engine = measured.blend.result.get("engine", {})
    limit = _limit(measured)
    answers = measured.blended("reordered-", fill=True, compare=True)
    problem = next((a.get("not_compared") for a in answers if a.get("not_compared")), "")
    if problem:
        return None, None, limit, f"not checked: {problem}"
    found = [entry for answer in answers for entry in answer.get("reused") or ()]
    layers = range(int(engine.get("layers", 0)))
    unseen = [
        layer
        for layer in layers
        if not any(one["layer"] == layer and one["moved"] for one in found)
    ]
    if unseen and any(one.get("unknown") for one in found):
        return None, None, limit, "not checked: this smoke did not store the chunks it loaded"
    if unseen:
        told = f"nothing that was moved and then reused was seen in {_named(unseen)}"
        return False, None, limit, told
    for part in ("keys", "values"):
        off = [one for one in found if not one[part] <= limit]
        if off:
            worst = max(one[part] for one in off)
            at = _named(sorted({one["layer"] for one in off}))
            how = _how(off, limit) if part == "keys" else "are not those that were stored"
            told = f"{part} that are reused in {at} {how}: off by {worst:.2g} of their norm"
            return False, worst, limit, told
    worst = max(max(one["keys"], one["values"]) for one in found)
    count = max(one["moved"] for one in found)
    seen = f"in {len(layers)} of {len(layers)} layers: up to {count} tokens moved and reused"
    return True, worst, limit, f"{seen}, off by {worst:.2g} of their norm, allowed {limit:.2g}"


def twice(measured: Measured) -> Verdict:
    """The same prompt again, where nothing moved: its answer, and what is computed anew for it.

    Rounding hides a wrong answer in bfloat16, and not a wrong row. How large it is in a layer is
    seen at ratio 1, where every row is computed anew.
    """
    answers = measured.blended("twice", ratio=measured.ratio)
    ok, nats, most, seen = within(measured, answers)
    found, whole = _anew(answers), _anew(measured.blended("twice", ratio=1.0))
    limits = {layer: max(_limit(measured), SAFETY * whole.get(layer, 0.0)) for layer in found}
    if not found:
        return ok, {"nats": nats}, {"nats": most}, f"{seen}; {_why_not(answers)}"
    off = [layer for layer in found if not found[layer] <= limits[layer]]
    worst = max(off or found, key=lambda layer: found[layer] / limits[layer])
    value, limit = {"nats": nats, "norms": found[worst]}, {"nats": most, "norms": limits[worst]}
    told = (
        f"what is computed anew is off from what was stored by {found[worst]:.2g} of its norm in "
        f"layer {worst}, allowed {limits[worst]:.2g}"
    )
    return ok and not off, value, limit, f"{seen}; {told}"


def _anew(answers: Iterable[Answer]) -> dict[int, float]:
    """How far what was computed anew is from what was stored, by layers."""
    return {
        one["layer"]: one["off"]
        for answer in answers
        for one in answer.get("reused") or ()
        if one["anew"]
    }


def _why_not(answers: Iterable[Answer]) -> str:
    """Why nothing that was computed anew was compared with what was stored."""
    for answer in answers:
        if answer.get("not_compared"):
            return f"rows not compared: {answer.get('not_compared')}"
        if any(one.get("unknown") for one in answer.get("reused") or ()):
            return "rows not compared: this smoke did not store the chunks it loaded"
    return "rows not compared: no token of a chunk was computed anew"


def written(measured: Measured) -> Verdict:
    """In every layer: what the blender ended with is what stands in vLLM's cache."""
    limit = _limit(measured)
    answers = measured.blended("reordered-", compare=True)
    problem = next((a.get("not_read") for a in answers if a.get("not_read")), "")
    if problem:
        return None, None, limit, f"not checked: {problem}"
    found = [entry for answer in answers for entry in answer.get("written") or ()]
    if not found:
        return None, None, limit, "not checked: no layer was seen"
    off = [one for one in found if any(not one[part] <= limit for part in PARTS)]
    if not off:
        seen = f"in {len({one['layer'] for one in found})} layers, read back from vLLM's cache"
        most = max(one[part] for one in found for part in PARTS)
        return True, most, limit, f"{seen}: what the blender ended with"
    wrong = [part for part in PARTS if any(not one[part] <= limit for one in off)]
    most = max(one[part] for one in off for part in wrong)
    told = " and ".join(PARTS[part] for part in wrong)
    at = _named(sorted({one["layer"] for one in off}))
    seen = f"of {told} in {at}, vLLM's cache holds something else than the blender ended with"
    return False, most, limit, f"{seen}: off by {most:.2g} of their norm"


def emptied(measured: Measured) -> str:
    """Where separators that nothing filled in are zeros in vLLM's cache; empty where nowhere."""
    answers = measured.blended("reordered-", fill=False, compare=True)
    found = [
        (entry["empty"], entry["marks"], entry["layer"])
        for answer in answers
        for entry in answer.get("written") or ()
        if entry["empty"]
    ]
    if not found:
        return ""
    count, marks, _ = max(found)
    at = _named(sorted({layer for _, _, layer in found}))
    return f"at {measured.ratio:g}: {count} of {marks} tokens of separators are zeros in {at}"


def _limit(measured: Measured) -> float:
    engine = measured.blend.result.get("engine", {})
    return LIMITS.get(str(engine.get("dtype")), LIMIT)


def _how(off: Iterable[Mapping[str, float]], limit: float) -> str:
    if all(one["still"] <= limit for one in off):
        return "keep the positions that they were stored at"
    return "are not the stored ones turned to their new positions"


def _named(layers: Sequence[int]) -> str:
    told = ", ".join(map(str, layers))
    return f"layer {told}" if len(layers) == 1 else f"layers {told}"
