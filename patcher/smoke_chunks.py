"""The chunks that were stored, against what the blender computes with in their places.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Chunks:
    """Keys and values of every chunk as they were stored, and the places chunks are loaded to.

    ``kept`` has for a chunk's tokens the position of its first token, and for each layer keys and
    values, ``[tokens, kv_heads * head_size]``. ``tokens`` are those of the request that runs,
    ``places`` the starts and ends in it of the chunks that are loaded for it.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], tuple[int, list[tuple[Any, Any]]]] = {}
        self.tokens: Any = ()
        self.places: list[tuple[int, int]] = []

    def watch(self, connector: Any) -> None:
        """Watch a layerwise connector of LMCache's while it stores and loads."""
        load, store = connector.batched_to_gpu, connector.batched_from_gpu

        def batched_to_gpu(starts: Any, ends: Any, **kwargs: Any) -> Any:
            self.places = [(int(start), int(end)) for start, end in zip(starts, ends)]  # noqa: B905
            return load(starts, ends, **kwargs)

        def batched_from_gpu(objects: Any, starts: Any, ends: Any, **kwargs: Any) -> Iterator[Any]:
            found: list[tuple[int, list[tuple[Any, Any]]]] = [(int(start), []) for start in starts]
            for chunk, end in zip(found, ends):  # noqa: B905
                self.kept[self._named(chunk[0], int(end))] = chunk
            for layer, step in enumerate(store(objects, starts, ends, **kwargs)):
                for chunk, held in zip(found, objects[layer] if layer < len(objects) else ()):  # noqa: B905
                    chunk[1].append(_copied(held.tensor))
                yield step

        connector.batched_to_gpu = batched_to_gpu
        connector.batched_from_gpu = batched_from_gpu

    def _named(self, start: int, end: int) -> tuple[int, ...]:
        return tuple(int(token) for token in self.tokens[start:end])

    def save(self, path: str) -> None:
        """For the process that loads what this one has stored."""
        import torch

        torch.save(self.kept, path)

    def load(self, path: str) -> None:
        """What another process has stored."""
        import torch

        self.kept |= torch.load(path)

    def compare(self, layer: int, held: tuple[Any, Any], picked: Any, rope: Any) -> dict[str, Any]:
        """What a layer computes with in the places of loaded chunks, against what was stored.

        Args:
            layer: its number.
            held: keys and values, ``[tokens, kv_heads * head_size]``, up to the end of the last
                loaded chunk.
            picked: indices of rows that were computed anew, or None.
            rope: the layer's own rotary embedding, of vLLM.

        Returns:
            ``rows`` that were compared, of which ``moved`` have another position than when they
            were stored, and those of chunks that nobody saw stored (``unknown``); the largest
            difference of ``keys``, of keys to what they were before any turning (``still``, of
            moved rows), and of ``values``, each in norms of the row. How many rows were computed
            ``anew`` in places they were stored from, and how far keys and values are ``off`` there.
        """
        import torch

        reused = torch.ones(held[0].shape[0], dtype=torch.bool)
        if picked is not None:
            reused[picked.to("cpu")] = False
        first = self._first(held)
        found: dict[str, Any] = {"layer": layer, "rows": 0, "moved": 0, "unknown": 0, "anew": 0}
        found.update(keys=0.0, still=0.0, values=0.0, off=0.0)
        for start, end in self.places:
            chunk = self.kept.get(self._named(start, end))
            here = reused[start - first : end - first]
            rows, others = torch.arange(start, end)[here], torch.arange(start, end)[~here]
            if chunk is None:
                found["unknown"] += len(rows)
                continue
            if start == chunk[0] and len(others):
                found["anew"] += len(others)
                for part, stored in zip(held, chunk[1][layer]):  # noqa: B905
                    off = apart(part[others - first].cpu(), stored[others - start])
                    found["off"] = max(found["off"], off)
            if not len(rows):
                continue
            at = held[0].device
            keys, values = (part[rows - start].to(at) for part in chunk[1][layer])
            new, old = rows.to(at), (rows - start + chunk[0]).to(at)
            wanted = turned(keys, old, new, rope)
            here = rows.to(at) - first
            found["rows"] += len(rows)
            found["keys"] = max(found["keys"], apart(held[0][here], wanted))
            found["values"] = max(found["values"], apart(held[1][here], values))
            if start != chunk[0]:
                found["moved"] += len(rows)
                found["still"] = max(found["still"], apart(held[0][here], keys))
        return found

    def places_of(self, held: tuple[Any, Any]) -> Any:
        """Places in the request of the rows that are held, int64, ``[tokens]``."""
        import torch

        first = self._first(held)
        return torch.arange(first, first + held[0].shape[0])

    def _first(self, held: tuple[Any, Any]) -> int:
        """The place of the first row: they end with the last chunk, whatever they begin with."""
        return self.places[-1][1] - int(held[0].shape[0])

    def written(
        self, layer: int, held: tuple[Any, Any], picked: Any, there: tuple[Any, Any]
    ) -> dict[str, Any]:
        """What stands in vLLM's cache, against what the blender ended with.

        Args:
            layer, held, picked: as for :meth:`compare`.
            there: keys and values of the same tokens in vLLM's cache, in the same shape.

        Returns:
            The largest difference of a row in its norms, of tokens that are ``reused``, that were
            computed ``anew``, and of ``separators`` that were not; how many of the last are zeros
            in vLLM's cache (``empty``), of how many separators (``marks``).
        """
        import torch

        first = self._first(held)
        mark = torch.ones(held[0].shape[0], dtype=torch.bool)
        for start, end in self.places:
            mark[start - first : end - first] = False
        anew = torch.zeros_like(mark)
        if picked is not None:
            anew[picked.to("cpu")] = True
        kinds = {"reused": ~mark & ~anew, "anew": anew, "separators": mark & ~anew}
        found: dict[str, Any] = {"layer": layer, "marks": int(mark.sum())}
        pairs = [(one.cpu(), other.cpu()) for one, other in zip(there, held)]  # noqa: B905
        for kind, rows in kinds.items():
            off = [apart(one[rows], other[rows]) for one, other in pairs if rows.any()]
            found[kind] = max(off, default=0.0)
        empty = mark & (pairs[0][0] == 0).all(dim=-1) & (pairs[1][0] == 0).all(dim=-1)
        found["empty"] = int(empty.sum())
        return found


def turned(keys: Any, old: Any, new: Any, rope: Any) -> Any:
    """Keys of the old positions, as they would be at the new ones.

    How far the rope turns at a position is asked of the rope itself: by what it makes of ones.

    Args:
        keys: ``[tokens, kv_heads * head_size]``.
        old: int64 positions, ``[tokens]``.
        new: the same.
        rope: a rotary embedding of vLLM's that turns every dimension.

    Raises:
        ValueError: it leaves dimensions as they are.
    """
    import torch

    size = rope.head_size
    if rope.rotary_dim != size:
        raise ValueError(f"the rope turns {rope.rotary_dim} of {size} dimensions")

    def parts(rows: Any) -> tuple[Any, Any]:
        if rope.is_neox_style:
            return rows[..., : size // 2], rows[..., size // 2 :]
        return rows[..., ::2], rows[..., 1::2]

    def turn(positions: Any) -> Any:
        ones = torch.zeros(len(positions), size, dtype=keys.dtype, device=keys.device)
        parts(ones)[0].fill_(1)
        real, imaginary = parts(rope(positions, ones.clone(), ones)[1].float())
        whole = torch.complex(real.contiguous(), imaginary.contiguous())
        # YaRN's scales too, and cached keys are scaled already.
        return whole / whole.abs()

    heads = keys.float().view(len(keys), -1, size)
    real, imaginary = parts(heads)
    moved = torch.complex(real.contiguous(), imaginary.contiguous())
    moved = moved * (turn(new) * turn(old).conj())[:, None]
    result = torch.empty_like(heads)
    first, second = parts(result)
    first.copy_(moved.real)
    second.copy_(moved.imag)
    return result.view(keys.shape)


def apart(held: Any, wanted: Any) -> float:
    """The largest difference of a row, in norms of what is wanted; whatever is no number is one."""
    wanted = wanted.float()
    norms = wanted.norm(dim=-1).clamp(min=1e-12)
    found = float(((held.float() - wanted).norm(dim=-1) / norms).max())
    return found if found < 1e6 else 1e6


def _copied(tensor: Any) -> tuple[Any, Any]:
    """Keys and values of a chunk, on the CPU."""
    import torch

    if torch.cuda.is_available():
        # It is copied beside what runs.
        torch.cuda.synchronize()
    return tensor[0].detach().cpu().clone(), tensor[1].detach().cpu().clone()
