"""Each kind of compiled autograd fallback has a catalog page with a cause and a hint."""

from __future__ import annotations

import torch

import engine
from engine.autograd.fallback_kinds import CAPTURE_REASONS, CaptureFallback
from engine.autograd.intercept import BackwardEvent, CaptureSettings, intercept_backwards


def test_each_kind_has_a_page() -> None:
    """Kinds and pages are the same ids; each page says why and what to do."""
    assert {kind.id for kind in CaptureFallback} == set(CAPTURE_REASONS)
    assert all(page.cause.endswith(".") and page.hints for page in CAPTURE_REASONS.values())


def test_a_backward_that_is_not_captured_has_a_kind() -> None:
    """A backward with create_graph in anomaly mode reports the kind and hint of its page."""
    events: list[BackwardEvent] = []
    settings = CaptureSettings("eager", lambda backward: backward.eager_run(), on_event=events.append)
    x = torch.ones(2, requires_grad=True)
    with intercept_backwards(settings), torch.autograd.set_detect_anomaly(True):  # type: ignore[no-untyped-call]
        torch.autograd.grad((x * x).sum(), x, create_graph=True)
    (event,) = events
    assert event.outcome == "eager" and event.fallback is not None
    assert event.fallback.kind is CaptureFallback.ANOMALY_MODE_DOUBLE
    assert event.fallback.hint.startswith("Compute the gradient without create_graph")
    assert event.reason == event.fallback.reason
    engine.reset()
