"""Copies of tensors keep values, strides and what autograd sees."""

from __future__ import annotations

import pytest
import torch

from engine.ir.node_values import copy_leaf

TENSORS = {
    "contiguous": torch.arange(12.0).reshape(3, 4),
    "expanded": torch.arange(3.0)[:, None].expand(3, 5),
    "sliced": torch.arange(24.0).reshape(4, 6)[::2, 1::3],
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(3),
    "channels last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_(),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_copy_has_values_strides_and_memory_of_its_own(name: str) -> None:
    """Writing to the copy leaves the tensor as it was; the copy is a leaf."""
    tensor = TENSORS[name]
    copy = copy_leaf(tensor)
    assert torch.equal(copy, tensor)
    assert (copy.stride(), copy.requires_grad, copy.is_leaf) == (tensor.stride(), tensor.requires_grad, True)
    assert not tensor.numel() or copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_a_sparse_tensor_is_copied() -> None:
    """A layout without strides is cloned."""
    tensor = torch.eye(3).to_sparse()
    assert torch.equal(copy_leaf(tensor).to_dense(), torch.eye(3))
