"""Triton helper functions that generated kernels call."""

_SOURCES = """\
def multiply(a, b):
    return a * b

def larger(a, b):
    return tl.where(a > b, a, b)

def smaller(a, b):
    return tl.where(a < b, a, b)

def larger_or_nan(a, b):
    return tl.where((a > b) | (a != a), a, b)

def smaller_or_nan(a, b):
    return tl.where((a < b) | (a != a), a, b)

def tanh_of_half(x):
    square = x * x
    near_zero = x * (1.0 + square * (-0.33333333 + square * (0.13333333 + square * (-0.05396825 + square * 0.02186949))))
    return tl.where(tl.abs(x) < 0.3, near_zero, 1.0 - libdevice.fast_dividef(2.0, libdevice.fast_expf(2.0 * x) + 1.0))

def one_plus_erf(x):
    # Abramowitz and Stegun 7.1.26: within 1.5e-7
    size = tl.abs(x)
    t = libdevice.fast_dividef(1.0, 1.0 + 0.3275911 * size)
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    rest = t * series * libdevice.fast_expf(-x * x)
    return tl.where(x < 0, rest, 2.0 - rest)

def sigmoid_of_half(x):
    return libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-x))

def sine_of_half(x):
    if tl.max(tl.abs(x)) < 8000.0:
        # Less whole half turns, in three parts that multiply without rounding (Cody and Waite, 1980).
        moved = x * 0.3183098861837907 + 12582912.0
        turns = moved - 12582912.0
        rest = ((x - turns * 3.140625) - turns * 9.67502593994140625e-4) - turns * 1.509957990978376e-7
        square = rest * rest
        made = rest + rest * square * (-0.16665856 + square * (0.00831431 - square * 0.00018543))
        sign = moved.to(tl.int32, bitcast=True) << 31
        sine = (made.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)
    else:
        sine = tl.sin(x)
    return sine

def add_exponents(a, b):
    top = tl.where((a > b) | (a != a), a, b)
    low = tl.where((a > b) | (a != a), b, a)
    return tl.where(top == low, top + 0.6931471805599453, top + tl.log(1.0 + tl.exp(low - top)))

def hurwitz(s, q):
    # The sum of (q + k) ** -s for q above zero: ten terms, and the rest by Euler's and Maclaurin's formula
    s = tl.zeros_like(q) + s
    total = libdevice.pow(q, -s)
    for _ in range(9):
        q += 1.0
        total += libdevice.pow(q, -s)
    q += 1.0
    last = libdevice.pow(q, -s)
    part = last * s / q
    total += last * (q / (s - 1.0) + 0.5) + part / 12.0
    part *= (s + 1.0) * (s + 2.0) / (q * q)
    total -= part / 720.0
    part *= (s + 3.0) * (s + 4.0) / (q * q)
    total += part / 30240.0
    part *= (s + 5.0) * (s + 6.0) / (q * q)
    total -= part / 1209600.0
    part *= (s + 7.0) * (s + 8.0) / (q * q)
    total += part / 47900160.0
    part *= (s + 9.0) * (s + 10.0) / (q * q)
    return total - part * (691.0 / 1307674368000.0)

def chebyshev(x, first, n):
    # p(k + 1) = 2 x p(k) - p(k - 1) from 1 and the first, up to each element's n
    before = tl.zeros_like(first) + 1.0
    found = tl.where(n < 1, before, first)
    for k in range(1, tl.max(n + tl.zeros((1,), tl.int64))):
        first, before = 2.0 * x * first - before, first
        found = tl.where(k < n, first, found)
    return tl.where(n < 0, 0.0, found)

def hermite(first, step, n):
    # p(k + 1) = first p(k) - step k p(k - 1) from 1 and the first, up to each element's n
    before = tl.zeros_like(first) + 1.0
    last = first
    found = tl.where(n < 1, before, first)
    for k in range(1, tl.max(n + tl.zeros((1,), tl.int64))):
        last, before = first * last - step * k * before, last
        found = tl.where(k < n, last, found)
    return tl.where(n < 0, 0.0, found)

def legendre(x, n):
    # (k + 1) p(k + 1) = (2 k + 1) x p(k) - k p(k - 1) from 1 and x, up to each element's n
    before = tl.zeros_like(x) + 1.0
    last = x
    found = tl.where(n < 1, before, last)
    for k in range(1, tl.max(n + tl.zeros((1,), tl.int64))):
        last, before = ((2.0 * k + 1.0) * x * last - k * before) / (k + 1.0), last
        found = tl.where(k < n, last, found)
    return tl.where(n < 0, 0.0, found)

def laguerre(x, n):
    # (k + 1) p(k + 1) = (2 k + 1 - x) p(k) - k p(k - 1) from 1 and 1 - x, up to each element's n
    before = tl.zeros_like(x) + 1.0
    last = 1.0 - x
    found = tl.where(n < 1, before, last)
    for k in range(1, tl.max(n + tl.zeros((1,), tl.int64))):
        last, before = ((2.0 * k + 1.0 - x) * last - k * before) / (k + 1.0), last
        found = tl.where(k < n, last, found)
    return tl.where(n < 0, 0.0, found)

def bessel_k_near(x, bessel_i, logarithm, order):
    # K of order 0 or 1 for small x from I of that order and log(x / 2) + Euler's number (Abramowitz and Stegun, 9.6.11)
    part = tl.zeros_like(x) + 1.0
    n = tl.zeros_like(x)
    harmonic = tl.zeros_like(x)
    total = tl.zeros_like(x)
    for _ in range(10):
        n += 1.0
        ahead = tl.where(order == 1, harmonic + (harmonic + 1.0 / n), harmonic)
        total += part * ahead
        part *= x * x * 0.25 / tl.where(order == 1, n * (n + 1.0), n * n)
        harmonic += 1.0 / n
    return tl.where(order == 1, 1.0 / x + logarithm * bessel_i - 0.25 * x * total, total - logarithm * bessel_i)

def bessel_k_far(x, order):
    # exp(x) K(x) is the integral of exp(-x (cosh(t) - 1)) cosh(order t), which sums of few values give to the last bits
    root = tl.sqrt(x)
    n = tl.zeros_like(x)
    total = tl.zeros_like(x) + 0.5
    for _ in range(36):
        n += 0.25
        half = libdevice.sinh(n / root * 0.5)
        total += tl.exp(-2.0 * x * half * half) * libdevice.cosh(order * (n / root))
    return total * 0.25 / root

def airy_near(x, at_zero, slope):
    # The Maclaurin series (Abramowitz and Stegun, 10.4.2)
    cube = x * x * x
    n = tl.zeros_like(x)
    first = tl.zeros_like(x) + at_zero
    second = slope * x
    total = first + second
    for _ in range(60):
        n += 3.0
        first *= cube / (n * (n - 1.0))
        second *= cube / (n * (n + 1.0))
        total += first + second
    return total

def lower_gamma(a, x):
    # The sum of x ** n / (a (a + 1) ... (a + n)), whose terms fall fast where x is below a + 1
    part = 1.0 / a
    total = part
    n = a
    for _ in range((tl.max(tl.sqrt(a) + tl.zeros((1,), a.dtype)) * 9.0).to(tl.int32) + 60):
        n += 1.0
        part *= x / n
        total += part
    return total

def upper_gamma(a, x):
    # The continued fraction for x above a (Abramowitz and Stegun, 6.5.31), by Lentz's method
    n = tl.zeros_like(x)
    even = x + 1.0 - a
    odd = tl.zeros_like(x) + 1e300
    inverse = 1.0 / even
    total = inverse
    for _ in range((tl.max(tl.sqrt(a) + tl.zeros((1,), a.dtype)) * 9.0).to(tl.int32) + 60):
        n += 1.0
        step = n * (a - n)
        even += 2.0
        inverse = step * inverse + even
        inverse = 1.0 / tl.where(inverse == 0.0, 1e-300, inverse)
        odd = even + step / odd
        odd = tl.where(odd == 0.0, 1e-300, odd)
        total *= inverse * odd
    return total

def common_divisor(a, b):
    # Euclid's; numbers of 64 bits take at most 92 steps
    a = tl.abs(a)
    b = tl.abs(b)
    for _ in range(92):
        rest = a % tl.where(b == 0, b + 1, b)
        rest = tl.where(b == 0, b, rest)
        a = tl.where(b == 0, a, b)
        b = rest
    return a"""

JIT_HELPERS = {
    source.partition("(")[0].removeprefix("def "): f"\n@triton.jit\n{source}\n" for source in _SOURCES.split("\n\n")
}
"""Functions that portable Triton lacks, by the name that kernels use."""


LIBDEVICE_HELPERS = frozenset(("tanh_of_half", "one_plus_erf", "sigmoid_of_half", "hurwitz", "bessel_k_far"))
