"""Strings and other plain values that models compute with."""

import torch

from tests.programs import program


@program(lambda: (torch.randn(3), "Layer.0.weight"))
def string_methods(x, name):
    """Methods of str on constants."""
    parts = name.split(".")
    return (
        x * int(parts[1]),
        name.lower(),
        "-".join(parts),
        name.startswith("Layer"),
        name.replace(".", "/"),
        name[-3:],
        len(name),
        "0" in name,
        parts[0] * 2,
        "%s=%d" % ("a", 3),
        "{:03d}".format(7),
        name.upper().center(20, "*"),
    )


@program(lambda: (torch.randn(3), 2))
def f_strings(x, n):
    """f-strings over plain values, with formats and conversions."""
    key = f"k{n}"
    table = {key: x, f"{n:02d}": x + 1, f"{x.shape[0]=}": x + 2, f"{key!r}": x + 3}
    return table


@program(lambda: (torch.randn(3),))
def f_string_of_dtype(x):
    """f-strings over torch's plain values."""
    return f"{x.dtype} {x.device} {list(x.shape)}", str(x.dtype), repr(x.shape)


@program(lambda: (torch.randn(3), b"bytes", 1 + 2j, 10**30))
def unusual_constants(x, data, number, big):
    """Bytes, complex numbers and large integers as arguments."""
    return x * number.real, len(data), big + 1, data[0]


@program(lambda: (torch.randn(3), 1.5), lambda: (torch.randn(3), 2.5), lambda: (torch.randn(3), -0.0))
def float_argument(x, scale):
    """A float argument that changes from call to call."""
    return x * scale, scale + 1


@program(lambda: (torch.randn(3), True), lambda: (torch.randn(3), 1), lambda: (torch.randn(3), 1.0))
def equal_but_different(x, value):
    """True, 1 and 1.0 are equal and still different arguments."""
    return x * value, type(value).__name__, value


@program(lambda: (torch.randn(3), float("nan")), steady=True)
def nan_argument(x, value):
    """NaN as an argument equals itself for guards."""
    return x * value, value != value


@program(lambda: (torch.randn(3), torch.float64, torch.device("cpu")))
def dtype_and_device_arguments(x, dtype, device):
    """dtypes and devices as arguments."""
    return x.to(dtype), torch.zeros(2, dtype=dtype, device=device), x.to(device=device, dtype=torch.int32)


@program(lambda: (torch.randn(8), slice(1, 5), (slice(None, None, 2),)))
def slice_arguments(x, window, index):
    """Slices as arguments."""
    return x[window], x[index], window.stop


@program(lambda: (torch.randn(3), 3), lambda: (torch.randn(3), 4), lambda: (torch.randn(3), 5))
def integer_argument_varies(x, n):
    """An integer argument that changes at every call."""
    return x * n + n, n * 2


@program(lambda: (torch.randn(3), 0.5), lambda: (torch.randn(3), 0.625), lambda: (torch.randn(3), 0.75))
def number_that_varies_in_text(x, scale):
    """A float that changes at each call is formatted as asked; a list rejects a format."""
    try:
        text = f"{[scale]:.2f}"
    except TypeError as error:
        text = str(error)
    return x * scale, f"{scale:.3f}", f"{scale!r:>8}", format(scale, "+.1f"), text


class Measured:
    """Converts to numbers, with another value for each kind."""

    def __float__(self):
        return 2.5

    def __index__(self):
        return 7


class Opaque:
    """Converts to no number."""


@program(lambda: (torch.randn(3), Measured(), Opaque()))
def objects_as_numbers_in_text(x, measured, opaque):
    """``%`` converts an object by its methods; the error of one without names its class."""
    texts = ["%.1f and %x" % (measured, measured)]
    for template in ("%.1f", "%d", "%x"):
        try:
            texts.append(template % opaque)
        except TypeError as error:
            texts.append(str(error))
    return x.sin(), *texts


@program(lambda: (torch.tensor([1.0, 5.0, 2.0]),), breaks=1)
def tensors_as_numbers_in_text(x):
    """``%`` reads a tensor's value: a graph break on that line, with work around it."""
    y = x * 2
    text = "%.2f at %d" % (y.mean(), y.argmax())
    return y.cos(), text
