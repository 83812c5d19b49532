"""The separate update of running statistics equals eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.graph.instance_norm_statistics import update_statistics


@pytest.mark.parametrize("shape", [(5, 5, 5), (3, 2, 4), (3, 2, 3, 4), (1, 4, 2, 3, 5)])
@pytest.mark.parametrize("momentum", [0.1, 0.5, -1.2])
def test_statistics_equal_eager(shape, momentum):
    """Running statistics are those that eager computes, for any momentum."""
    x = torch.randn(shape)
    mean, var = torch.randn(shape[1]), torch.rand(shape[1])
    found = (mean.clone(), var.clone())
    F.instance_norm(x, mean, var, use_input_stats=True, momentum=momentum)
    update_statistics(x, *found, momentum)
    torch.testing.assert_close(found, (mean, var))
