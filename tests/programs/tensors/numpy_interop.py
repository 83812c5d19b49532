"""NumPy in traced code: functions, array arguments and results, scalars, dtypes, tensors."""

import numpy as np
import torch
from torch.torch_version import TorchVersion

from tests.programs import program

#: Whether a quantile at a constant position is traced: torch before 2.12 reads the position.
TRACES_QUANTILES = TorchVersion(torch.__version__) >= (2, 12)


@program(lambda: (torch.randn(3, 4),))
def there_and_back(x):
    """A tensor, as an array, as a tensor."""
    a = x.numpy()
    return torch.from_numpy(np.abs(a) * 2 + a.max(axis=0))


@program(lambda: (np.arange(6.0).reshape(2, 3),))
def array_argument(a):
    """An array in and an array out."""
    return np.exp(a) @ a.T + 1


@program(lambda: (torch.tensor([1.0, 3.0, 2.0]),), lambda: (torch.tensor([1.0, 2.0, 5.0]),))
def scalars_as_slice_bounds(x):
    """A NumPy integer is a bound of a slice, as a number is."""
    m = np.argmax(x.detach().numpy())
    written = x.clone()
    written[m:] = 0
    return x[:m], x[None, m:], written


@program(
    lambda: (torch.tensor([1.0, 3.0, 2.0]), np.float64(1.0)), lambda: (torch.tensor([1.0]), np.float64(0.5)), breaks=1
)
def other_scalars_as_slice_bounds(x, bound):
    """The error for a float is eager's."""
    return x[: np.floor(bound)]


@program(lambda: (np.arange(4), np.ones(4, dtype=np.float32)))
def array_methods(a, b):
    """Methods and attributes of arrays."""
    c = (a * b).reshape(2, 2)
    return c.sum(), c.mean(axis=1), c.T, c.shape, c.ndim, c.dtype, c.astype(np.int64), c.max(), c.argmax()


@program(lambda: (np.arange(12.0).reshape(3, 4),))
def array_indexing(a):
    """Slices, masks, assignments."""
    b = a.copy()
    b[0] = 7
    b[:, 1] += 2
    return b, a[1:, ::2], a[..., None].shape


@program(lambda: (torch.randn(4),))
def functions_of_numpy(x):
    """Many functions."""
    a = x.detach().numpy()
    return (
        np.where(a > 0, a, 0),
        np.concatenate([a, a]),
        np.stack([a, a]),
        np.linspace(0, 1, 5),
        np.clip(a, -1, 1),
        np.cumsum(a),
        np.dot(a, a),
    )


@program(lambda: (torch.randn(4),))
def array_and_tensor(x):
    """torch functions on arrays turned into tensors in several ways."""
    a = np.array([1.0, 2.0, 3.0, 4.0])
    return torch.as_tensor(a) + x, torch.tensor(a), x * torch.from_numpy(a.astype(np.float32))


SCALE = np.float32(2.5)
TABLE = np.array([1, 2, 3])


@program(lambda: (torch.randn(3),))
def numpy_globals(x):
    """A scalar and an array of the module's."""
    return x * float(SCALE), x + torch.from_numpy(TABLE)


@program(lambda: (torch.randn(2, 3),))
def numpy_constants(x):
    """pi, inf, newaxis, dtypes; functions on plain numbers."""
    n = np.sqrt(x.shape[0] * 8)
    return x * np.pi, x.shape[0] * np.e, np.prod([2, 3]), int(np.ceil(2.3)), float(n)


@program(lambda: (np.array([3.0, 1.0, 2.0]),))
def sorting_arrays(a):
    """sort, argsort, unique sizes known, min and max."""
    return np.sort(a), np.argsort(a), np.maximum(a, 2), a.min(), np.zeros_like(a), np.ones((2, 2))


@program(lambda: (np.float64(3.0), np.arange(3)))
def numpy_scalars(s, a):
    """A numpy scalar as an argument."""
    return a * s


@program(lambda: (np.arange(6).reshape(2, 3), torch.ones(2, 3)))
def mixed(a, x):
    """Arrays and tensors in one expression through from_numpy."""
    return torch.from_numpy(a) * x, (a / 2).astype("float32")


@program(lambda: (np.ones(3),))
def in_place_array(a):
    """An argument changed in place."""
    a += 1
    a[0] = 5
    return a * 2


@program(lambda: (np.arange(4.0),))
def array_in_container(a):
    """Arrays in lists and dicts."""
    parts = {"x": [a + 1, a * 2]}
    return parts, isinstance(a, np.ndarray), len(a), list(a.shape)


@program(lambda: (torch.randn(2, 2),))
def linear_algebra(x):
    """numpy.linalg and numpy.random stay out of the way."""
    a = x.numpy()
    return np.linalg.norm(a), np.matmul(a, a), np.einsum("ij,jk->ik", a, a), np.transpose(a), np.outer(a[0], a[1])


@program(lambda: (np.arange(3.0), np.arange(3.0) + 1))
def array_operators(a, b):
    """Operators and comparisons."""
    return a + b, a - b, a * b, a / b, a // b, a % b, a**2, -a, a == b, a < b, (a < b) & (b > 1), abs(a - b)


@program(lambda: (torch.randn(2),))
def to_list(x):
    """tolist of a few elements gives numbers that only the graph knows.

    From Python 3.12 on, sum() adds three floats and more with a compensation, which breaks the graph.
    """
    return sum(x.numpy().tolist()) * 0 + x


@program(lambda: (torch.randn(4, 4),))
def array_reductions(x):
    """Reductions with axis and keepdims."""
    a = x.numpy()
    return a.sum(axis=1, keepdims=True), np.mean(a, axis=0), np.std(a), a.var(), np.any(a > 0), np.all(a > -9), a.prod()


@program(lambda: (np.arange(12.0).reshape(3, 4),), breaks=1)
def array_masked(a):
    """The size of a masked array depends on values."""
    return a[a > 5] * 2


@program(lambda: (np.arange(4),))
def whole_numbers_divided(a):
    """Whole numbers become doubles, as numpy has it."""
    return a / 2, np.sqrt(a), np.mean(a), a.std(), np.exp(a)


@program(lambda: (np.arange(4.0),), breaks=1)
def array_flipped(a):
    """A view with negative strides."""
    return a[::-1] + 1


@program(lambda: (np.array(["a", "b"]), torch.ones(2)))
def array_of_texts(a, x):
    """An array that no tensor can hold is passed on."""
    return a, x * 2


@program(lambda: (np.arange(3.0), 2), lambda: (np.arange(5.0), 3))
def arrays_of_other_sizes(a, n):
    """Another size compiles again, with sizes as they are."""
    return a * n + a.shape[0]


@program(
    lambda: (torch.ones(2), 3, np.int64(7)),
    lambda: (torch.ones(2), 4, np.int64(7)),
    lambda: (torch.ones(2), 5, np.int64(7)),
    steady=False,
)
def changing_number_beside_numpys(x, n, size):
    """A changing number compared or computed with a NumPy scalar gives a NumPy scalar."""
    found = ["last"] if n == size - 2 else []
    return x + n, found, n == size - 2, n < size, n in [size - 2, 4], n + size, type(n * size).__name__


@program(lambda: (torch.tensor([1, 2, 3]), np.int64(2)))
def tensor_compared_with_numpys_number(x, n):
    """Element by element, like any number."""
    return x == n, x != n, x < n


@program(
    lambda: (torch.arange(3), np.float64(2.5), np.int8(3)),
    lambda: (torch.arange(3.0), np.float32(2.5), np.int64(3)),
)
def tensors_of_numbers(x, a, b):
    """A tensor takes the dtype of its NumPy scalars; in arithmetic they are Python numbers."""
    return (
        torch.tensor(a),
        torch.as_tensor([a, a]),
        torch.asarray(b),
        torch.tensor([b, 1]),
        torch.full((2,), a),
        x * a + b,
    )


@program(lambda: (torch.arange(3), np.bool_(True)), breaks=2)
def truth_among_numbers(x, flag):
    """In arithmetic a truth value of numpy's is a fraction."""
    y = x + 1
    return flag * y, flag - y


torch.tensor([np.ones(1)])  # torch warns of it once in a process


@program(lambda: (np.array([1, 2]), torch.ones(2)), lambda: (np.array([1, 2, 3]), torch.ones(3)))
def tensors_of_lists_of_arrays(a, x):
    """Lists of arrays become tensors of their type, or of one that is asked for."""
    made = torch.tensor([a, a + 1])
    a[0] = 7
    return made, torch.tensor([[a], [a * 2]], dtype=torch.float32) + x, torch.as_tensor([a / 2], dtype=None)


@program(
    *[lambda n=n: (torch.arange(3.0), np.float64(n), np.int64(2 * n)) for n in (1.5, 2.5, -3.5, 4.5, 0.0)],
    lambda: (torch.arange(3.0), np.float32(0.1), np.int32(7)),
    lambda: (torch.arange(3.0), np.float32(0.2), np.int32(8)),
    lambda: (torch.arange(3), np.float64(0.1), np.int64(9)),
)
def changing_numbers(x, s, n):
    """NumPy scalars that change between calls, on both sides of tensors and as arguments."""
    return x * s, s - x, x / n, n * x, x > s, torch.add(x, n, alpha=2), torch.full((2,), s), x.clamp(max=s)


@program(*[lambda n=n: (torch.randn(n, 3), np.random.RandomState(n).rand(n)) for n in (2, 3, 4)], tolerance=1e-5)
def statistics_of_arrays_beside_tensors(x, a):
    """Scalars computed from an array are numbers beside tensors; they do not change in place."""
    low = top = a.max()
    low -= a[0]
    y, whole = x.clone(), x.long()
    view = y[:1]
    y *= a.astype(np.float32).sum()
    return (x - a.mean()) / a.std(), low - x, top, x > low, whole - a.argmin(), view, np.argmax(a) * x, a


@program(
    lambda: (torch.ones(3), np.float64(1.5)),
    lambda: (torch.ones(3), np.float64(2.5)),
    lambda: (torch.ones(3), np.float64(3.5)),
    steady=False,
)
def changing_number_in_python(x, s):
    """A number of numpy's that changes, decides a jump, and is computed with in Python."""
    half = s / 2
    if s > 2:
        x = x + 1
    return x * s, half, type(half), s.dtype, f"{s}"


@program(lambda: (torch.randn(4, 2), np.array([0, 2])), lambda: (torch.randn(4, 2), np.array([-1, 3], dtype=np.int32)))
def tensors_at_positions_of_arrays(x, at):
    """NumPy index arrays read and write tensors; a NumPy integer is an index too."""
    y = x.clone()
    y[at, 1] = 3.0
    y[at] += 1
    return x[at], x[at, 0], x[:, at[:1] % 2], x[at[1]], x[at[:, None], np.array([0, 1])], y


@program(lambda: (torch.randn(4), torch.tensor([0, 1, 1, 2])), breaks=2)
def numpy_over_sizes_that_values_decide(x, labels):
    """numpy asked about an array whose size values decide is asked with the real one."""
    chosen = torch.where(labels > 0)[0]
    order = np.argsort(labels[chosen].numpy())[:2]
    _, first = np.unique(order, return_index=True)
    return x[chosen], x[first]


@program(*[lambda n=n: (torch.arange(n * 3.0).reshape(n, 3),) for n in (2, 3, 4)], steady=False)
def numbers_from_arrays(x):
    """Numbers read from an array are numbers of the graph; nothing warns."""
    a = x.numpy()
    least = int(np.argmin(a.sum(1)))
    byte = x.to(torch.uint8).numpy().max() - np.uint8(2)
    return x * float(a.mean()), x[least], a.max().item(), a.max().tolist(), a[:1, :1].item(), int(byte)


@program(lambda: (torch.randn(4, 20, dtype=torch.float64),), breaks=1)
def vectors_whose_sign_is_arbitrary(x):
    """NumPy computes singular vectors: LAPACK of another library may negate them."""
    vectors = np.linalg.svd(x.numpy(), full_matrices=False)[0]
    return torch.from_numpy(vectors) @ x


@program(*[lambda x=x: (np.array([x, 0.1, x * 3], np.float32),) for x in (0.3, 0.3, 0.25)])
def floats_compared_with_numbers(x):
    """A Python number takes the dtype of an array or a scalar, a number of numpy does not."""
    scalar = x[0] > 0.3, 0.3 < x[0], x[0] == 0.3, np.not_equal(0.3, x[0]), abs(x[0]) <= 0.3, x[0] >= 0
    double = x[0] > np.float64(0.3), x == np.float64(0.3), x[1] < np.array([0.1, 0.2])
    return scalar, double, x > 0.3, x[:, None] >= x, x.astype(np.int64)[0] < 0.5, x[0] > [0.3, 0.2]


@program(
    lambda: (np.array([[0.5, -2.0, 3.0, 1.0], [4.0, 0.0, -1.0, 2.5]], np.float32), np.arange(6).reshape(2, 3)),
    breaks=0 if TRACES_QUANTILES else 2,
)
def percentiles(a, n):
    """A percentile has numpy's shape, dtype and strides: float64 where positions are an array."""
    several = np.percentile(a, [5, 50], axis=1), np.quantile(a.astype(np.float64), [0.1, 0.9], axis=1)
    one = np.percentile(a, 90), np.quantile(n, 0.3), np.percentile(np.abs(a), 25.0, axis=0), float(np.percentile(a, 50))
    return several, one, [p.strides for p in several]


@program(lambda: (np.array([[3, 5], [8, 0]]), np.array([[4, 12], [15, 1]])))
def integers_that_torch_has_no_kernel_for(a, b):
    """What torch would run on integers is computed on doubles, as in numpy."""
    return np.hypot(a, b), np.hypot(a, 4) + 1, np.arctan2(a, b), np.logaddexp(a, b), np.copysign(a, -1)


@program(lambda: (np.array([[0.5, 2.0], [1.0, -1.0]], np.float32), np.array([[True, False], [False, True]])))
def booleans_subtracted(rewards, done):
    """Booleans count as numbers beside numbers, where torch refuses to subtract them."""
    return 1.0 - done, rewards * (1 - done[0]), 1.0 - done[0, 1], rewards - done


@program(lambda: (np.arange(12, dtype=np.float32).reshape(3, 4),))
def views_of_other_dtypes(a):
    """A view reads the memory as another dtype, and writes reach the array."""
    bits = a.view(np.int32)
    bits[0] += 1
    halves = a[1:].view(np.int16)
    return bits ^ 3, halves.sum(), a.view(np.float64), np.ones(2).view("int64"), a[0].view(dtype=np.uint8), a


@program(lambda: (np.arange(9, dtype=np.float32).reshape(3, 3).T,), breaks=1)
def view_that_numpy_refuses(a):
    """The error for a view that does not fit the strides is numpy's."""
    return a.view(np.float64)
