from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kvpatch.smoke_orders import Orders
from kvpatch.smoke_settings import basic, settings

SPEC = {"arch": "llama", "rope": "default", "tokenizer": "bos"}


def _orders(folder: Path, *, gds: bool = False, **change: Any) -> Orders:
    values = basic(lambda _: True, gds_path=folder / "gds" if gds else None)
    given: dict[str, Any] = {
        "folder": folder,
        "model": str(folder / "model"),
        "spec": SPEC,
        "cpu": True,
        "graphs": True,
        "settings": settings(values),
        "connector": {"kv_connector": "LMCacheConnectorV1"},
        **change,
    }
    return Orders(**given)


def test_originals_go_to_files_and_are_named_by_their_modules(tmp_path: Path) -> None:
    content = b"as it was\n"
    order = _orders(tmp_path, originals={"vllm/v1/worker/gpu_worker.py": content}).reference().order
    [(module, path)] = order["originals"].items()
    assert module == "vllm.v1.worker.gpu_worker"
    assert Path(path).read_bytes() == content
    # The same prompts as were asked of the code as it is.
    asked = [step["prompt"] for step in order["steps"]]
    assert order["again"]
    assert set(order["again"]) <= set(asked)


def test_without_a_journal_nothing_is_asked_twice_of_the_reference(tmp_path: Path) -> None:
    assert not {"originals", "again"} & set(_orders(tmp_path).reference().order)


def test_the_originals_run_where_there_is_neither_lmcache_nor_a_stand_in(tmp_path: Path) -> None:
    engine = _orders(tmp_path, originals={"vllm/a.py": b""}).reference()
    assert engine.config is None
    assert engine.order["harness"] is False
    assert "kv_transfer_config" not in engine.order["engine"]


def test_only_the_tiny_model_is_made_and_by_the_reference(tmp_path: Path) -> None:
    tiny = _orders(tmp_path)
    assert tiny.reference().order["make"]["folder"] == tiny.model
    assert "make" not in tiny.blend(()).order
    assert "make" not in _orders(tmp_path, spec=None).reference().order


def test_ratios_asked_for_take_the_place_of_the_usual_ones(tmp_path: Path) -> None:
    def ratios(*asked: float) -> set[float]:
        steps = _orders(tmp_path).blend(asked).order["steps"]
        return {step["ratio"] for step in steps if step.get("sweep")}

    # The configured one and 1 are always needed: one is the price, the other the oracle.
    assert ratios(0.4) == {0.15, 0.4, 1.0}
    assert len(ratios()) > len(ratios(0.4))


def test_only_the_blending_engine_is_sent_prompts_together_and_that_last(tmp_path: Path) -> None:
    orders = _orders(tmp_path)
    asked = [step["prompt"] for step in orders.blend(()).order["together"]]
    # The one that engines were seen to die of comes after all that they live through.
    assert (asked[0], asked[-1]) == ("together-store", "together-inside")
    assert not any("together" in one.order for one in (orders.reference(), orders.layerwise()))


def test_the_control_has_no_gds_and_keeps_chunks_in_memory(tmp_path: Path) -> None:
    orders = _orders(tmp_path, gds=True, fault="zero")
    control = orders.layerwise()
    assert control.config is not None
    values = yaml.safe_load(control.config.read_text())
    assert not {"gds_path", "retrieve_locations"} & set(values)
    assert (values["local_cpu"], values["enable_blending"]) == (True, False)
    assert (control.order["gds"], control.order["fault"]) == (False, "")
    assert orders.store().order["gds"] is True
