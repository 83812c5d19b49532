"""Tensors of every kind: metadata, views changed in place, out=, dtypes, sizes, layouts."""

import warnings

import torch

from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@program(lambda: (torch.randn(2, 3),))
def sizes_asked(x):
    """torch.Size and its methods."""
    s = x.shape
    return (
        s.numel(),
        s[1:],
        s + (4,),
        s.index(3),
        len(s),
        s == (2, 3),
        tuple(s),
        x.size(),
        x.size(-1),
        x.stride(),
        isinstance(s, torch.Size),
    )


@program(lambda: (torch.randn(2, 3),))
def metadata_asked(x):
    """dtype, device, layout and the like."""
    return (
        x.dtype.is_floating_point, x.dtype.itemsize, x.dtype == torch.float32, x.device.type, x.device.index, x.layout is torch.strided,
        x.is_contiguous(), x.is_contiguous(memory_format=torch.contiguous_format), x.ndim, x.nbytes, x.itemsize, x.element_size(), x.is_cuda, x.is_sparse,
        x.requires_grad, x.is_leaf, x.numel(), x.storage_offset(), x.is_floating_point(), x.is_complex(), x.is_signed(),
    )  # fmt: skip


@program(lambda: (torch.randn(2, 3),))
def dtypes_as_values(x):
    """dtypes and devices passed about, compared, used as keys."""
    table = {torch.float32: torch.float64, torch.float64: torch.float32}
    limits = torch.finfo(x.dtype)
    return (
        x.to(table[x.dtype]),
        limits.max,
        limits.tiny,
        torch.iinfo(torch.int8).bits,
        torch.promote_types(torch.int8, torch.float16),
        str(x.device),
        torch.device("cpu") == x.device,
    )


@program(lambda: (leaf(3),))
def data_read(x):
    """.data has no gradient."""
    y = x.data * 2
    return y + x, y.requires_grad


@program(lambda: (torch.randn(3),))
def data_written(x):
    """.data set inside."""
    y = x.clone()
    y.data = torch.ones(4)
    return y + 1


@program(lambda: (torch.randn(3), torch.empty(3)))
def written_to_out(x, out):
    """out= into an argument and into a result."""
    mine = torch.empty(3)
    torch.sin(x, out=mine)
    torch.add(x, 1, out=out)
    return mine


@program(
    lambda: (torch.tensor([1.5, 0.6, 1.7, 0.9]), torch.zeros(4, dtype=torch.int64)),
    lambda: (torch.tensor([1.5, 0.6, 1.7, 0.9]), torch.zeros(4, dtype=torch.float64)),
    steady=False,
)
def out_argument_of_other_dtype(x, out):
    """Sums and products are computed in the dtype of out=: fractions are lost first."""
    total = torch.zeros((), dtype=out.dtype)
    torch.sum(x, 0, out=total)
    torch.cumsum(x, 0, out=out)
    return total, out * 2, torch.cumprod(x, 0, out=torch.zeros_like(out))


@program(lambda: (torch.arange(1.0, 5.0), torch.zeros(2, 16)))
def out_argument_written_through_hidden_view(x, out):
    """A Kronecker product counts no write to its out= argument."""
    inner = torch.zeros(16)
    torch.kron(x, x, out=inner)
    torch.kron(x, x + 1, out=out[0])
    return inner * 2, inner._version, out._version


@program(lambda: (torch.randn(3, 2), torch.empty(0)))
def out_resized(x, out):
    """out= of another size: the argument itself changes its size."""
    torch.mul(x, 2, out=out)
    return out + 1


@program(lambda: (torch.randn(4, 4),))
def views_changed(x):
    """In-place work on views of an argument and of an intermediate."""
    x[1].mul_(2)
    x.view(-1)[::3] = 0
    y = x * 2
    row = y[2]
    row += 1
    y.t()[0].zero_()
    return y, row


@program(lambda: (torch.randn(4),), breaks=1)
def resized(x):
    """resize_ of an intermediate."""
    y = x.clone()
    y.resize_(2, 2)
    return y * 2


@program(lambda: (torch.randn(4), torch.randn(2)))
def storage_set(x, y):
    """set_ gives a tensor another's memory."""
    z = x.clone()
    z.set_(y)
    return z + 1


@program(lambda: (leaf(3),))
def gradient_asked(x):
    """.grad of an argument that has none."""
    return x * 2 if x.grad is None else x.grad


def with_grad():
    x = torch.randn(3, requires_grad=True)
    x.grad = torch.ones(3)
    return x


@program(lambda: (with_grad(),))
def gradient_read(x):
    """.grad of an argument that has one."""
    return x.grad * 2 + x.detach()


@program(lambda: (with_grad(),))
def gradient_set(x):
    """.grad set, to a tensor and to None."""
    x.grad = x.detach() * 2
    y = x.grad + 1
    x.grad = None
    return y, x.grad is None


@program(lambda: (torch.randn(3),))
def gradients_wanted(x):
    """requires_grad_ of an intermediate."""
    y = x.clone().requires_grad_()
    z = y * 2
    return z.requires_grad, z.detach()


@program(lambda: (torch.tensor(3), torch.randn(5)))
def item_as_size(n, x):
    """An item used as a size."""
    return x[: n.item()] * 2


@program(lambda: (torch.tensor(2.5), torch.randn(5)))
def item_as_number(n, x):
    """An item used as a number."""
    return x * n.item()


@program(lambda: (torch.tensor([1, 0, 2]), torch.randn(3)))
def nonzero_positions(n, x):
    """How many positions there are depends on values."""
    return x[n.nonzero().squeeze(1)]


@program(lambda: (torch.randn(3, dtype=torch.complex64),))
def complex_tensors(z):
    """Complex arithmetic, parts, views as real, conjugation."""
    return (
        z * z.conj(),
        z.real + z.imag,
        torch.view_as_real(z),
        z.abs(),
        torch.polar(z.abs(), z.angle()),
        z.conj().is_conj(),
        z * 2j,
    )


@program(lambda: (torch.randn(3, 4).to_sparse(),), breaks=2)
def sparse_argument(s):
    """A sparse tensor."""
    return s.to_dense() * 2


@program(lambda: (torch.eye(3),))
def sparse_made(x):
    """A sparse tensor made inside."""
    return torch.sparse.mm(x.to_sparse(), x)


def _edges():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_coo_tensor(torch.zeros(1, 1).long(), torch.ones(1), (1,))  # torch warns of it once in a process
        torch.ones(1, 1).to_sparse_csr()
    return torch.tensor([[0, 1, 1, 3, 0], [2, 0, 0, 1, 2]]), torch.arange(1.0, 6)


@program(lambda: (*_edges(), torch.arange(16.0).view(4, 4).requires_grad_()))
def sparse_graph_convolution(edges, weights, x):
    """A sparse adjacency matrix that is created, normalized and multiplied inside."""
    adjacency = torch.sparse_coo_tensor(edges, weights, (4, 4)).coalesce()
    degree = torch.sparse.sum(adjacency, dim=1).to_dense()
    attention = torch.sparse.softmax(adjacency.t(), dim=1)
    return torch.sparse.mm(adjacency, x) / (degree + 1)[:, None], attention @ x


@program(lambda: (*_edges(), torch.ones(4, 4)), breaks=3)
def sparse_stored_elements(edges, weights, x):
    """The number of stored elements, which fake tensors do not have, is as in eager."""
    state = torch.sparse_coo_tensor(edges, weights, (4, 4)).t().is_coalesced()
    count = torch.sparse_coo_tensor(edges, weights, (4, 4))._nnz()
    return state, x * count, x[: torch.sparse_coo_tensor(edges, weights, (4, 4)).coalesce().values().shape[0]] + 1


@program(lambda: (*_edges(), torch.ones(4, 4)), breaks=3)
def sparse_times_dense(edges, weights, x):
    """The product of a sparse and a dense tensor is sparse."""
    return (torch.sparse_coo_tensor(edges, weights, (4, 4)) * x).to_dense() + 1


@program(lambda: (*_edges(), torch.ones(4, 4)))
def sparse_conversions(edges, weights, x):
    """Number types, copies, signs and sizes of a sparse tensor that is created inside."""
    matrix = -torch.sparse_coo_tensor(edges, weights, (4, 4)).to(x.device).double().clone()
    same = matrix.to(torch.float64) is matrix, matrix.numel(), matrix.sparse_dim(), matrix.element_size()
    return same, torch.mv(matrix, x[0].double()), torch.addmm(x, matrix.float(), x), x @ matrix.float()


@program(lambda: (torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.ones(2), torch.ones(2, 3)), breaks=4)
def sparse_checked_when_created(rows, columns, weights, x):
    """Creating a tensor of compressed rows, or one without a size, reads the indices."""
    compressed = torch.sparse_csr_tensor(rows, columns, weights, (2, 2)) @ (x + 1)
    return compressed * 2, torch.sparse.mm(torch.sparse_coo_tensor(torch.stack([columns, columns]), weights), x) + 1


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)


@program(lambda: (quantized(),), breaks=2)
def quantized_argument(q):
    """A quantized tensor."""
    return q.dequantize() + 1


@program(lambda: (torch.empty(3, 4, device="meta"), torch.randn(2)))
def meta_argument(m, x):
    """A tensor without memory, beside one with."""
    return (m @ m.t()).shape, m.device, x * m.shape[0]


@program(lambda: (torch.randn(3), torch.ones(3, dtype=torch.int64)))
def conversions(x, n):
    """Conversions between types and to other tensors' types."""
    return (
        x.double(),
        x.to(n),
        n.to(x.dtype),
        x.type(torch.float16),
        x.type_as(n),
        n.bool(),
        x.half().float(),
        x.to("cpu"),
        x.cpu(),
        x.to(torch.float32) is x,
    )


@program(lambda: (torch.randn(2, 3, 4, 5),))
def memory_formats(x):
    """Channels last."""
    y = x.contiguous(memory_format=torch.channels_last)
    return (
        y,
        y.is_contiguous(memory_format=torch.channels_last),
        y.to(memory_format=torch.contiguous_format),
        torch.empty_like(y).stride(),
    )


@program(lambda: (torch.randn(3),))
def attributes_of_functions(x):
    """Operators reached as attributes, by getattr, and as overloads."""
    return (
        torch.ops.aten.sin(x),
        torch.ops.aten.add.Tensor(x, x),
        getattr(torch, "cos")(x),
        torch.Tensor.mul(x, 2),
        getattr(x, "exp")(),
    )


@program(lambda: (torch.randn(3),))
def unpacked(x):
    """A tensor unpacked, iterated, zipped."""
    a, b, c = x
    return (
        a + b,
        [y * 2 for y in x],
        [(i, y) for i, y in enumerate(x)],
        list(zip(x, x.unbind())),
        len(x),
        torch.stack([*x]),
    )


@program(lambda: (torch.randn(3), 2), lambda: (torch.randn(3), 3), lambda: (torch.randn(3), 4))
def numbers_that_change(x, n):
    """An int that changes becomes a symbol; what is computed from it too."""
    return x * n, n // 2, n * 1.5, max(n, 2), float(n), x.new_zeros(n).shape


@program(lambda: (torch.randn(3), 0.5), lambda: (torch.randn(3), 0.25), lambda: (torch.randn(3), 0.75))
def floats_that_change(x, f):
    """A float that changes."""
    return x * f, f * 2, f > 0.4


@program(lambda: (torch.randn(3),))
def identity_of_results(x):
    """What is the same tensor and what is not."""
    y = x.contiguous()
    z = x.view(3)
    return y is x, z is x, y, x.detach() is x, x.to(torch.float32) is x


@program(lambda: (torch.randn(3, 4),))
def legacy_constructors(x):
    """Old ways of making tensors."""
    return (
        torch.Tensor([1, 2]),
        torch.FloatTensor([3.0]),
        torch.LongTensor([1, 2]),
        x.new([1.0]),
        x.new_tensor([1, 2]),
        torch.Tensor(2, 3).shape,
    )


@program(lambda: (torch.randn(3, 4),))
def tensors_made(x):
    """Ways of making tensors."""
    return (
        torch.arange(x.shape[0]), torch.full((2,), 3.0), torch.zeros_like(x), x.new_full((2,), 1), torch.eye(2), torch.linspace(0, 1, 3),
        torch.tensor([[1, 2], [3, 4]]), torch.tensor(x.shape), torch.as_tensor([1.0, 2.0]), torch.scalar_tensor(2.0), torch.empty(0).shape,
        torch.tensor([x[0, 0], x[0, 1]]).shape if False else None,
    )  # fmt: skip


@program(lambda: (torch.randn(3),))
def to_python_list(x):
    """tolist."""
    return x.tolist()[0] * 0 + x


@program(lambda: (torch.randn(2, 3),))
def named_results(x):
    """Results with names."""
    found = x.max(dim=1)
    values, indices = torch.topk(x, 2)
    return found.values, found.indices, found[0], values, indices, torch.linalg.qr(x).Q.shape, type(found).__name__


@program(lambda: (torch.randn(4, 5),))
def indexed(x):
    """Indexing of all kinds."""
    mask = torch.tensor([True, False, True, False])
    rows = torch.tensor([0, 2])
    return (
        x[0],
        x[-1, 2],
        x[:, None],
        x[..., 1:3],
        x[rows],
        x[rows, rows],
        x[[0, 1]],
        x[::2],
        x[rows][:, rows],
        torch.where(mask[:, None], x, 0),
        x[None].shape,
        x[True].shape,
    )


@program(lambda: (torch.randn(16),))
def spectrum_and_back(x):
    """Composites that look at values in C++ are traced by their Python forms."""
    window = torch.hann_window(8)
    spectrum = torch.stft(x, 8, 4, window=window, return_complex=True)
    return spectrum.abs(), torch.istft(spectrum, 8, 4, window=window, length=16)


@program(lambda: (torch.randn(16, 16),), breaks=1)
def scales_named_by_enum(x):
    """What fx has no name for is no argument of a node."""
    narrow, wide = x.to(torch.float8_e4m3fn), x.t().contiguous().t().to(torch.float8_e4m3fn)
    scale = [torch.ones(1)], [torch.nn.functional.ScalingType.TensorWise], [torch.nn.functional.SwizzleType.NO_SWIZZLE]
    return torch._scaled_mm_v2(narrow, wide, *scale, *scale, None, torch.bfloat16)


@program(lambda: (torch.ones(2, 3),), lambda: (torch.ones(4, 3),), lambda: (torch.ones(5, 3),))
def legacy_constructors_of_sizes(x):
    """Constructors read a ``torch.Size``, even an empty one, as a size, not as elements."""
    made = [x.new(x.shape), torch.Tensor(x.size()), torch.LongTensor(x.shape), x.new(torch.Size([])), x.new(2, 3)]
    shapes = [m.shape for m in (*made, torch.Tensor(x.shape[0], 2), torch.DoubleTensor(torch.Size([x.shape[0]])))]
    return x.new((2, 3)) * x[0, 0], torch.Tensor([1, 2]), shapes, [m.zero_() for m in made]


@program(lambda: (torch.rand(3) + 0.5,), lambda: (torch.rand(3) + 0.5,))
def samples_of_distributions(rate):
    """Distributions that make their samples of ``new`` tensors: the numbers that eager draws."""
    kinds = torch.distributions
    made = [kinds.Exponential(rate), kinds.Laplace(rate, rate), kinds.Cauchy(rate, rate), kinds.Geometric(rate / 2)]
    drawn = [d.sample((2,)) for d in made]
    return drawn, [d.log_prob(s) for d, s in zip(made, drawn, strict=True)]


@program(lambda: (torch.randn(2) + 1j,))
def complex_numbers_without_a_text(x):
    """Complex numbers whose text Python reads as another number, or not at all."""
    found = x + complex(1, float("nan")), x * complex(float("inf"), 2), torch.full((2,), complex(-0.0, -0.0))
    return [torch.view_as_real(y) for y in found], 1 / found[2].real


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@program(
    lambda: (torch.arange(1.0, 68.0).view(1, 67),),
    lambda: (torch.arange(1.0, 68.0, dtype=torch.float64).view(1, 67),),
    lambda: (torch.ones(1, 1),),
)
def integers_of_floats_that_do_not_fit(x):
    """NaN and large numbers become what this CPU gives, also if they are constants."""
    unfit = (x * float("nan"), x * 0 + 1e30, x - float("inf"), x.abs() + 3e9, -x.abs() - 3e9, (-x).log())
    return [[number.to(dtype) for number in unfit] for dtype in INTEGERS]
