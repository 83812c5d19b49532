"""Values of tensors at the AOT wrappers, as the view shows them."""

from __future__ import annotations

import torch

import engine
from notebook_ext.views.aot_wrappers import aot_wrappers
from notebook_ext.views.privacy_note import privacy_note
from notebook_ext.views.static_snapshot.render import snapshot_html


def test_the_view_has_the_values_at_each_wrapper() -> None:
    """With every step recorded, the view has the values at each wrapper.

    There is one moment for each wrapper, in call order, with the names of the rings. The privacy note
    mentions the values.
    """
    engine.reset()

    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    with engine.record(level="steps") as session:
        engine.compile(doubled, backend="aot_eager")(torch.ones(2))
    told = aot_wrappers(session, session.compilations[0].id)
    names = [ring["name"] for ring in told["rings"]]
    ((how, moments),) = [(p["how"], p["moments"]) for p in told["passages"]]
    assert how == ""
    assert (moments[0]["ring"], moments[-1]["ring"]) == ("Call", "Call")
    assert {m["ring"] for m in moments} - {"Call", "Graph"} <= set(names)
    assert ["x", "[2, 2]"] in moments[-1]["values"]
    assert "the values of small tensors" in privacy_note(session)
    assert "Values of small tensors at the wrappers" in snapshot_html(session)


def test_values_of_torch_compile_have_the_names_of_the_traced_graph() -> None:
    """Its trace numbers AOTAutograd's inputs; the view names them.

    It also says that the graph is for inference: no gradient is needed.
    """

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sin()

    with engine.observe_torch() as session:
        torch.compile(scaled, backend="aot_eager")(torch.ones(2), torch.ones(3, 1))
    view = aot_wrappers(session, session.compilations[0].id)
    assert [(v["name"], v["type"]) for v in view["inputs"]] == [("x", "f32[2]"), ("w", "f32[3, 1]")]
    assert view["mode"] == "inference"
