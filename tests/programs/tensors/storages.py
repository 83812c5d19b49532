"""Tensor storages: ``.data`` and ``set_``, storage sizes, addresses, resized storages."""

from __future__ import annotations

import torch

from tests.programs import program


@program(lambda: (torch.arange(12.0).view(3, 4), torch.arange(5.0)), lambda: (torch.ones(4, 3), torch.ones(7)))
def data_of_another_size(x, y):
    """Assigning ``.data`` takes the other's sizes and memory; earlier views hold the old one."""
    before = x[0]
    count = x.shape[0]
    x.data = y
    x.add_(1)
    before.mul_(2)
    return x * 2, before, count, x.shape, x.numel(), len(x)


@program(lambda: (torch.arange(6.0).view(2, 3),))
def data_of_another_type_and_layout(x):
    """``.data`` takes another dtype, and a transposed view of itself."""
    x.data = x.to(torch.float64)
    x.data = x.t()
    return x + 1, x.dtype, x.stride(), x.is_contiguous()


@program(lambda: (torch.arange(6.0), torch.arange(5.0)))
def offset_of_given_data(x, y):
    """Where a tensor starts in memory that it was given is asked of the new memory."""
    x.data = y[2:]
    return x.storage_offset(), x * 2


@program(lambda: (torch.arange(4.0), torch.arange(4.0) + 9))
def data_exchanged(x, y):
    """Two tensors take each other's memory."""
    kept = x.data
    x.data = y.data
    y.data = kept
    y.add_(1)
    return x * 2, y, kept


@program(lambda: (torch.ones(3, 2),), breaks=2)
class Unsharded(torch.nn.Module):
    """A weight is a slice of one flat parameter while the layer runs, then its old data again."""

    def __init__(self):
        super().__init__()
        self.flat = torch.nn.Parameter(torch.arange(8.0))
        self.layer = torch.nn.Linear(2, 2, bias=False)

    def forward(self, x):
        weight = self.layer.weight
        own = weight.data
        weight.data = self.flat.data[:4].view(2, 2)
        shares = weight.untyped_storage().data_ptr() == self.flat.untyped_storage().data_ptr()
        out = self.layer(x)
        weight.data = own
        return out, shares


@program(lambda: (torch.ones(2, 3),), steady=False)
class Converted(torch.nn.Module):
    """Modules convert their parameters through ``.data``, inside a handler for meta tensors."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("kept", torch.ones(3))

    def forward(self, x):
        self.to(torch.bfloat16)
        first = self.layer(x.bfloat16()) + self.kept
        self.double()
        return first, self.layer(x.double()) + self.kept


@program(lambda: (torch.nn.Parameter(torch.arange(4.0)), torch.ones(4)), breaks=1)
def data_after_a_gradient(p, x):
    """The gradient keeps the type that the parameter had."""
    (p * x).sum().backward()
    p.data = p.data.double()
    return p * 2, p.grad


@program(lambda: (torch.arange(12.0), torch.arange(6.0)), breaks=1)
def sizes_of_storages(x, y):
    """Storage sizes of arguments, views and results; all views share one storage object."""
    part, made = x[2:], y + 1
    sizes = part.untyped_storage().nbytes(), len(made.untyped_storage()), made.untyped_storage().size()
    same = part.untyped_storage() is x.untyped_storage(), x.untyped_storage() == y.untyped_storage()
    return sizes, same, made.untyped_storage().device, isinstance(x.untyped_storage(), torch.UntypedStorage), made


def _shared():
    whole = torch.arange(6.0)
    return whole, whole[2:]


@program(lambda: (torch.arange(4.0), torch.arange(6.0)), _shared, breaks=12)
def addresses(x, y):
    """Two tensors may share a start address or a storage in one call and not in the next."""
    starts = x.data_ptr() == y.data_ptr(), x.data_ptr() == x.view(2, -1).data_ptr(), x.data_ptr() != x[1:].data_ptr()
    whole = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    made = (x + 1).data_ptr() == x.data_ptr()
    return starts, whole, made, x.untyped_storage()._cdata == y.untyped_storage()._cdata, x.sum() + y.sum()


@program(lambda: (torch.arange(4.0), torch.arange(6.0)), breaks=2, steady=False)
def an_address_from_before(x, y):
    """An address or storage read before a tensor gets other memory refers to the old memory."""
    start, storage = x.data_ptr(), x.untyped_storage()
    x.data = y
    return start == x.data_ptr(), storage is x.untyped_storage(), storage.nbytes(), x + 1


@program(lambda: (torch.arange(4.0),))
def storage_emptied_and_filled(x):
    """The memory of a result, and of an argument, is given back and asked for again."""
    made = x * 2
    view, total = made[:2], made.sum()
    made.untyped_storage().resize_(0)
    empty = view.untyped_storage().nbytes()
    made.untyped_storage().resize_(16)
    made.fill_(3)
    count = x.untyped_storage().size()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(count)
    x.copy_(view.sum() + made)
    return view + 1, empty, total, x


@program(lambda: (torch.arange(12.0),))
def made_tensors_set(x):
    """``set_`` makes a new tensor a view of a tensor's memory, of a storage's, or of none."""
    first = torch.empty(0).set_(x)
    second = torch.empty(0)
    second.set_(x.untyped_storage(), 1, (2, 3), (3, 1))
    third = torch.empty(0)
    third.set_(x, 2, size=(2,), stride=(4,))
    second.add_(1)
    none = torch.ones(3)
    none.set_()
    return first * 2, second, third, none, x


@program(lambda: (torch.arange(3.0), torch.arange(8.0).untyped_storage()))
def storage_as_an_argument(x, storage):
    """A storage from outside tells its size and device."""
    return x + storage.nbytes() + len(storage), storage.device, storage.size()


@program(lambda: (torch.arange(6.0).view(2, 3).requires_grad_()[..., 0],), breaks=2)
def view_given_other_memory(x):
    """A view written under ``no_grad`` is read with gradients; its view chain is known before."""
    with torch.no_grad():
        x.zero_()
    y = x.clone()
    x.data = y.squeeze()
    return x.unbind(0)[0]
