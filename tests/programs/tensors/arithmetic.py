"""Elementwise operations: operators, functions, dtypes and broadcasting."""

import math

import torch
import torch.nn.functional as F

from tests.programs import program


@program(lambda: (torch.randn(3, 4), torch.randn(4)))
def broadcast_add(x, y):
    """A row is added to every row."""
    return x + y


@program(lambda: (torch.randn(5), torch.randn(5)))
def every_operator(a, b):
    """All binary arithmetic operators, between tensors."""
    return a + b, a - b, a * b, a / b, a // b, a % b, a.abs() ** b


@program(lambda: (torch.randn(5),))
def reflected_operators(x):
    """A number on the left of every operator."""
    return 1 + x, 1 - x, 2 * x, 1 / (x.abs() + 1), 2**x, 7 // (x.abs() + 1), 5 % (x.abs() + 1)


@program(lambda: (torch.randn(4, 4), torch.randn(4, 4)))
def matmul_operator(a, b):
    """The @ operator and its in-place cousin's meaning."""
    c = a @ b
    c = c @ a
    return c


@program(lambda: (torch.randn(6), torch.randn(6)))
def comparisons(a, b):
    """Comparisons give bool tensors."""
    return a < b, a <= b, a > b, a >= b, a == b, a != b


@program(lambda: (torch.tensor([True, False, True]), torch.tensor([True, True, False])))
def boolean_operators(p, q):
    """Bitwise operators on bool tensors."""
    return p & q, p | q, p ^ q, ~p


@program(lambda: (torch.tensor([1, 2, 3]), torch.tensor([3, 1, 2])))
def integer_operators(a, b):
    """Shifts and integer division keep integer dtypes."""
    return a << b, a >> b, a // b, a % b, a & b, -a, a / b


@program(lambda: (torch.randn(8),))
def unary_chain(x):
    """A chain of unary functions that fuses into one kernel."""
    return torch.tanh(torch.sin(x).exp().abs().sqrt() + torch.cos(x).neg())


@program(lambda: (torch.randn(8),))
def many_activations(x):
    """Activations of torch.nn.functional."""
    return (
        F.relu(x),
        F.gelu(x),
        F.gelu(x, approximate="tanh"),
        F.silu(x),
        F.elu(x),
        F.leaky_relu(x, 0.2),
        F.softplus(x),
        F.mish(x),
    )


@program(lambda: (torch.randn(4, 3),))
def python_constants(x):
    """Python numbers, math constants and math functions fold into the graph."""
    return x * math.pi + math.sqrt(2.0) - 3


@program(lambda: (torch.randn(6),))
def clamp_where(x):
    """Clamping, selecting and replacing."""
    return torch.where(x > 0, x.clamp(max=0.5), x.clamp(-1, 0)), torch.maximum(x, -x), torch.minimum(x, x * 2)


@program(lambda: (torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0]),))
def special_values(x):
    """NaN and infinities go through unchanged in kind."""
    return x + 1, x * 0, torch.isnan(x), torch.isinf(x), torch.nan_to_num(x), x.max(), torch.relu(x)


@program(lambda: (torch.randn(4), torch.randint(0, 5, (4,)), torch.tensor([True, False, True, True])))
def dtype_promotion(x, i, p):
    """Float, int and bool tensors mix by torch's rules."""
    return x + i, i + p, i * 1.5, p + 1, x * p, i / 2, i + torch.tensor(2.0), p.float() - x


@program(lambda: (torch.randn(4), torch.randn(4, dtype=torch.float64), torch.randn(4).to(torch.bfloat16)))
def float_widths(x, d, h):
    """Float widths promote to the wider one; a zero-dimensional tensor promotes nothing."""
    return x + d, x + h, h * 2, h + torch.tensor(1.5, dtype=torch.float64), h.float() @ x


@program(lambda: (torch.randn(4, 4),))
def casts(x):
    """Every way to write a cast."""
    return (
        x.to(torch.float64),
        x.half(),
        x.bool(),
        x.long(),
        x.type_as(torch.zeros(1, dtype=torch.int32)),
        x.to(x.dtype),
        x.double().float(),
    )


@program(lambda: (torch.randn(5),))
def scalar_tensor(x):
    """Zero-dimensional tensors broadcast and stay tensors."""
    scale = torch.tensor(3.0)
    return x * scale, scale * 2, scale + torch.tensor(1)


@program(lambda: (torch.randn(5), torch.rand(5)))
def addcmul_lerp(x, w):
    """Ternary operators with a scalar argument."""
    return (
        torch.addcmul(x, x, w, value=0.5),
        torch.addcdiv(x, w, x.abs() + 1, value=2),
        torch.lerp(x, w, 0.3),
        torch.lerp(x, w, w),
    )


@program(lambda: (torch.randn(3, 4),))
def empty_result(x):
    """Tensors without elements keep shape and dtype."""
    return x[:0], x[:, 4:], x[:0].sum(), torch.zeros(0, 3) + 1


@program(lambda: (torch.randn(3),))
def new_tensors(x):
    """Tensors made inside: full, like, arange, eye, literal."""
    return (
        torch.zeros(2, 3),
        torch.ones_like(x),
        torch.full((2,), 7),
        torch.arange(5),
        torch.arange(0, 1, 0.25),
        torch.eye(2),
        x.new_zeros(2),
        torch.tensor([[1, 2], [3, 4]]),
    )


@program(lambda: (torch.randn(4, dtype=torch.complex64),))
def complex_numbers(z):
    """Complex tensors work, if only through ATen."""
    return z * z.conj(), z.abs(), z.real, z.imag + 1


@program(lambda: (torch.randn(2, 3), 2, 0.5, "relu", True, None))
def plain_arguments(x, i, f, name, flag, nothing):
    """Numbers, text, flags and None as arguments."""
    y = getattr(torch, name)(x) * i + f
    if flag:
        y = y + 1
    if nothing is None:
        y = y * 2
    return y


@program(lambda: (torch.randn(4), torch.randn(4)))
def augmented_on_fresh(a, b):
    """Augmented assignment on a tensor made inside leaves the arguments alone."""
    c = a * 1
    c += b
    c *= 2
    c -= 1
    c /= 3
    return c


@program(lambda: (torch.randn(4), 3))
def integer_arithmetic(x, n):
    """Python integer arithmetic among the arguments runs at trace time."""
    m = n * 2 + 1
    k = m // 2 - n % 2
    return x * k + (m**2 if k > 2 else -m), divmod(m, k), round(m / 4), abs(-n), min(n, m), max(n, k), n << 2


@program(lambda: (torch.tensor([0.0, 1.0, 2.0, 3.0]), -1), lambda: (torch.tensor([4.0, 5.0, 2.0]), -1))
def powers_of_negative_numbers(x, sign):
    """A negative base is raised as a whole: the power is not negated, unlike ``-1 ** x``."""
    size = x.new_zeros(x.shape[0]) + sign ** x.shape[0]
    base = -2
    base **= x
    return sign**x, (-2.0) ** x, pow(-3, x), float("-inf") ** x, (-0.0) ** x, size, base


@program(lambda: (torch.randn(3, 4, dtype=torch.complex64), torch.zeros(3, 4)))
def imaginary_part_of_a_conjugate(a, b):
    """The imaginary part of a conjugate is a view that is negated when it is read."""
    imaginary = a.conj().imag
    b.copy_(imaginary)
    return imaginary * 2, torch.stack([imaginary, a.real]), (-a.conj()).imag.sum(-1), b + 1


@program(lambda: (torch.randn(3, 4, dtype=torch.complex64),))
def complex_elements_roll_in_memory_order(a):
    """A roll without dimensions moves whole complex numbers, over the ends of rows."""
    return a.conj().roll(1), (a * 2).roll(-2), (a + 1).roll((1, -1), (-1, 0))


@program(*[lambda n=n: (torch.randn(n, 4), torch.randn(n, 4), torch.randn(n, 4), torch.randn(n, 4)) for n in (2, 3, 5)])
def named_like_parts_of_a_kernel(begin, end, size, end_ptr):
    """Names of tensors may be those that kernels have for bounds, sizes and pointers."""
    entry = begin * end + size.sin() * end.shape[0]
    result = torch.where(entry > 0, end_ptr, entry.cos())
    return result, result.sum(-1), (result - begin).amax(0)


@program(
    *[lambda d=d, k=k: (torch.full((4,), 0.3, dtype=d), k) for d in (torch.float16, torch.bfloat16) for k in (0.3, 0.7)]
)
def numbers_beside_half_precision(x, number):
    """A number that fills, selects or is compared has the precision of the tensor beside it."""
    filled = torch.full_like(x, 0.3) == x, x.masked_fill(x > 0, 0.3) == x, torch.where(x > 0, 0.3, x) == x
    compared = x > 0.3, x == number, x <= torch.tensor(0.3), torch.where(x > 0.3, 1.0, 2.0)
    rests = -x % 0.3, torch.full_like(x, number) % number, torch.fmod(torch.full_like(x, number), number), number % x
    return filled, compared, rests
