"""Tensor subclasses: ``__torch_function__``, modes, wrappers that flatten themselves."""

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor

from tests.programs import program


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Tagged(torch.Tensor):
    """Counts nothing, keeps its type, scales products."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = super().__torch_function__(func, types, args, kwargs)
        if func is torch.mul:
            return found * 1
        return found

    def doubled(self):
        return self + self


class Labelled:
    """Like a tensor without being one."""

    def __init__(self, value, label):
        self.value = value
        self.label = label

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        plain = [a.value if isinstance(a, Labelled) else a for a in args]
        label = next(a.label for a in args if isinstance(a, Labelled))
        return Labelled(func(*plain, **kwargs), label + "!")


class Unaware(torch.Tensor):
    """Switches the protocol off."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Shift(TorchFunctionMode):
    """Adds one to every sine."""

    def __init__(self, by=1):
        super().__init__()
        self.by = by

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            return func(*args, **(kwargs or {})) + self.by
        return func(*args, **(kwargs or {}))


@program(lambda: (torch.randn(3).as_subclass(Plain),))
def plain_subclass(x):
    """Results keep the class."""
    y = x.sin() + 1
    return y, type(y).__name__, isinstance(y, Plain)


@program(lambda: (torch.randn(3).as_subclass(Tagged), torch.randn(3)))
def tagged_subclass(x, y):
    """The protocol is followed for functions, methods and operators."""
    return torch.mul(x, y), x.doubled(), y + x, x.sum(), x.shape, x[0]


@program(lambda: (torch.randn(3),))
def made_subclass(x):
    """as_subclass inside, and back."""
    y = x.as_subclass(Tagged)
    return (y * 2).as_subclass(torch.Tensor), isinstance(y, Tagged)


@program(lambda: (Labelled(torch.randn(3), "a"),))
def like_a_tensor(x):
    """An object with the protocol."""
    y = torch.sin(x)
    z = torch.add(y, 1)
    return z.value, z.label


@program(lambda: (torch.randn(3).as_subclass(Unaware),))
def unaware_subclass(x):
    """A subclass without the protocol: results are plain."""
    y = x * 2
    return y, type(y).__name__


@program(lambda: (torch.randn(3),))
def mode_inside(x):
    """A mode entered inside."""
    with Shift():
        y = torch.sin(x)
    return y, torch.sin(x)


@program(lambda: (torch.randn(3),))
def modes_nested(x):
    """Modes inside modes, and one that has an attribute."""
    with Shift(2):
        with Shift(3):
            a = torch.sin(x)
        b = torch.sin(x)
    return a, b


@program(lambda: (torch.randn(3).as_subclass(Tagged),))
def protocol_switched_off(x):
    """DisableTorchFunctionSubclass."""
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
    return y, type(y).__name__


@program(lambda: (torch.randn(3).as_subclass(Tagged),))
def protocol_asked(x):
    """Questions about the protocol."""
    return torch.overrides.has_torch_function((x,)), torch.overrides.is_tensor_like(x), x.doubled()


@program(lambda: (TwoTensor(torch.ones(3), torch.zeros(3)),))
def two_tensors(x):
    """A wrapper subclass with __torch_dispatch__."""
    return x * 2 + 1


@program(lambda: (TwoTensor(torch.ones(3), torch.zeros(3)), torch.randn(3)))
def two_tensors_and_plain(x, y):
    """A wrapper subclass beside a plain tensor."""
    z = y.sin()
    return x + 1, z


def attributed():
    x = torch.randn(3).as_subclass(Tagged)
    x.note = 5
    return x


@program(lambda: (attributed(),))
def subclass_with_attribute(x):
    """Attributes of the instance."""
    return x * x.note, x.note


@program(lambda: (torch.nn.Parameter(torch.randn(3)),))
def parameter_argument(p):
    """A parameter as an argument."""
    return p * 2, isinstance(p, torch.nn.Parameter), type(p * 1).__name__


@program(lambda: (TwoTensor(torch.ones(3), torch.full((3,), 3.0)),))
def insides_of_two_tensors(x):
    """The tensors inside a wrapper, and what its class says of it."""
    y = x.sin() * 2
    names, _ = x.__tensor_flatten__()
    return y, y.a + x.b, x.shape, type(x) is TwoTensor, hasattr(x, "c"), [getattr(x, n) * 2 for n in names]


@program(lambda: (torch.ones(3),))
def two_tensors_made(x):
    """A wrapper made in traced code."""
    both = TwoTensor(x.sin(), x.cos())
    one = TwoTensor(x, x)
    return both * 2, both.a + both.b, one.a is one.b, one.a is x, both.a is both.b


@program(lambda: (TwoTensor(torch.ones(3), torch.ones(3)),))
def inside_written(x):
    """A tensor inside a wrapper is written to."""
    x.a.add_(1)
    return x * 2


class Scaled(torch.Tensor):
    """Numbers beside their scale."""

    @staticmethod
    def __new__(cls, data, scale, name):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)

    def __init__(self, data, scale, name):
        self.data_inside = data
        self.scale = scale
        self.name_of_it = name

    def __tensor_flatten__(self):
        return ["data_inside", "scale"], self.name_of_it

    @staticmethod
    def __tensor_unflatten__(inner, name, size, stride):
        return Scaled(inner["data_inside"], inner["scale"], name)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        of = args[0]
        return Scaled(func(of.data_inside, *args[1:], **(kwargs or {})), of.scale, of.name_of_it)

    def plain(self):
        return self.data_inside * self.scale.sum()


@program(*[lambda n=n: (Scaled(torch.ones(2), torch.ones(3), n),) for n in ("a", "a", "b")])
def methods_of_a_wrapper(x):
    """Its own methods and attributes, also of what operations make of it."""
    y = x.sin() + 1
    return y.plain(), len(y.name_of_it) * 2 if x.name_of_it == "a" else 0


class Wide(torch.Tensor):
    """Overrides what tensors have, and calls it."""

    def sum(self, dim=None):
        return super().sum(dim=dim).as_subclass(Wide)

    @property
    def shape(self):
        return (*super().shape, 7)


@program(lambda: (torch.ones(2, 3),))
def overridden_and_called(x):
    """super() in methods and properties of a subclass; instances made by calling it."""
    y = Wide(x + 1)
    y.note = 3
    return y.sum(dim=1), y.shape, y.note, torch.Tensor._make_subclass(Wide, x) * 2


@program(lambda: (torch.ones(2).as_subclass(Tagged),))
def protocol_looked_at(x):
    """Whether the protocol is on, asked while it is switched off."""
    with torch._C.DisableTorchFunctionSubclass():
        inside = torch._C._is_torch_function_enabled()
    return inside, torch._C._is_torch_function_enabled(), x + 1


@program(
    lambda: (torch.randn(5, 2, requires_grad=True), torch.tensor([0, 2, 5])),
    lambda: (torch.randn(6, 2, requires_grad=True), torch.tensor([0, 1, 6])),
)
def jagged(values, offsets):
    """A nested tensor over values and offsets."""
    x = torch.nested.nested_tensor_from_jagged(values, offsets)
    return (x.sin() * 2).values() + x.values(), x.size(0), x.dim()


class Notes(TorchFunctionMode):
    """Notes what it is asked, and adds where it should multiply."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.asked.append(func.__name__)
        if func is torch.mul:
            return torch.add(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@program(lambda: (torch.ones(2),))
def mode_asked_of_all(x):
    """A mode is asked of attributes, methods and factories, too."""
    with Notes() as notes:
        y = torch.mul(x, 3) + torch.ones(2).size(0)
        n = y.shape[0]
    return y, n, notes.asked


@program(lambda: (torch.ones(2),), breaks=1)
def mode_over_a_break(x):
    """A graph ends while a mode is in force."""
    with Notes() as notes:
        y = torch.mul(x, 3)
        print("in between")
        y = torch.mul(y, 4)
    return torch.mul(y, 5), notes.asked


@program(lambda: (torch.ones(2),))
def all_protocols_off(x):
    """Neither modes nor subclasses are asked."""
    with Shift():
        with torch._C.DisableTorchFunction():
            off = torch._C._is_torch_function_all_disabled()
            y = torch.sin(x)
        z = torch.sin(x)
    return off, torch._C._is_torch_function_all_disabled(), y, z


@program(
    lambda: (torch.ones(2, 3).requires_grad_(), torch.ones(4, 3)),
    lambda: (torch.ones(3, 3).requires_grad_(), torch.ones(4, 3)),
)
def jagged_of_list(a, b):
    """Jagged tensors of different lengths are built with and without gradients and padded."""
    whole = torch.nested.as_nested_tensor([a, b * 2], layout=torch.jagged)
    apart = torch.nested.nested_tensor([b, a.detach()], layout=torch.jagged, dtype=torch.float64)
    return (whole * 2).sin().values(), apart.offsets(), torch.nested.to_padded_tensor(whole.detach(), 0.0)


@program(lambda: (torch.arange(20.0).sin().view(5, 4).requires_grad_(), torch.tensor([0, 2, 5])), breaks=1)
def jagged_attention(values, offsets):
    """Attention reads the lengths, so Python runs it; its nested result is traced further."""
    x = torch.nested.nested_tensor_from_jagged(values, offsets)
    q = x.unflatten(-1, [2, 2]).transpose(1, 2)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)
    return (y * 2).to_padded_tensor(0.0)


class Changing(torch.Tensor):
    """Gets and loses attributes between calls."""


class ChangingByProtocol(Changing):
    """The same, with a protocol of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def changing(value):
    """Arguments of one call, after the class attribute ``sigmoid`` was set or deleted."""

    def make():
        if value is None:
            if "sigmoid" in vars(Changing):
                del Changing.sigmoid
        else:
            Changing.sigmoid = value
        return tuple(torch.zeros(2).as_subclass(c) for c in (Changing, ChangingByProtocol))

    return make


@program(changing(None), changing(3), changing(lambda self: "mine"), changing(None), steady=False)
def class_attributes_that_change(x, y):
    """A method of tensors is hidden by an attribute of the class, then found again."""
    return [t.sigmoid() if callable(t.sigmoid) else t.sigmoid for t in (x, y)]


class Extending(torch.Tensor):
    """Calls methods of ``torch.Tensor`` by that class, and by ``super()``."""

    def sin(self):
        return torch.Tensor.sin(self) + 1

    def cos(self):
        return super().cos() + 1


@program(lambda: (torch.zeros(2).as_subclass(Extending), torch.zeros(2).as_subclass(Plain)))
def overrides_that_call_the_method_of_tensors(x, y):
    """An override that calls torch's method by its class calls that method, not itself."""
    return x.sin(), x.cos(), x.detach(), y.detach(), torch.Tensor.detach(x)


class Logged(torch.Tensor):
    """Logs what reaches ``__torch_function__``."""

    log = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if cls.log is not None:
            cls.log.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def logged(size):
    """A view of a larger tensor: its guards also read the base, the strides and the offset."""

    def make():
        tensor = torch.ones(size + 2, 3)[1:-1].as_subclass(Logged)
        Logged.log = []
        return (tensor,)

    return make


@program(logged(4), logged(5), logged(6), logged(6))
def guards_that_run_no_torch_function(x):
    """Guards and symbolic sizes read inputs without running what their classes override."""
    result = x + 1
    log, Logged.log = Logged.log, None
    return result, log


class Sized(torch.Tensor):
    """Notes that its shape was read."""

    @property
    def shape(self):
        self.reads = getattr(self, "reads", 0) + 1
        return self.size()


@program(lambda: (torch.ones(2).as_subclass(Sized),))
def shapes_that_are_overridden(x):
    """Compiling a function does not read the property."""
    return x + 1, getattr(x, "reads", 0)


def _channels_last_pair():
    x = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)
    return TwoTensor(x, x.clone())


@program(lambda: (_channels_last_pair(),), lambda: (_channels_last_pair(),))
def random_numbers_in_memory_order_of_parts(x):
    """The parts of a subclass stay channels last, and random numbers fill them in that order."""
    x.cumsum_(0)
    x.normal_()
    return x.a, x.b


def base_and_part(*, is_reshaped=False):
    base = TwoTensor(torch.arange(16.0).view(4, 4), torch.ones(4, 4))
    part = base.split(1)[-1]
    if is_reshaped:
        base.unsqueeze_(0)
    return base, part


@program(base_and_part, breaks=2)
def base_of_a_part_gets_another_shape(a, b):
    """A part of a wrapper whose base the function reshapes first."""
    a.unsqueeze_(0)
    return a.mul(2), b.add(1)


@program(lambda: base_and_part(is_reshaped=True), breaks=2)
def part_of_a_base_that_got_another_shape(a, b):
    """A part of a wrapper whose base the caller has reshaped."""
    return a.mul(2), b.add(1)


@program(lambda: base_and_part(is_reshaped=True), breaks=4)
def part_of_a_base_that_got_another_shape_written(a, b):
    """The same where the part is written."""
    b.mul_(2)
    return a.mul(2), b.add(1)
