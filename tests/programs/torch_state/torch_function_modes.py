"""State around or inside a call: torch-function modes, autocast, deterministic algorithms."""

import inspect

import torch
import torch._dynamo
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from tests.programs import program

len_of_modes = torch._C._len_torch_function_stack


class Zeros(BaseTorchFunctionMode):
    """Additions become zeros."""

    def __torch_function__(self, func, types, args, kwargs=None):
        if func == torch.add:
            return torch.zeros(2)
        return super().__torch_function__(func, types, args, kwargs or {})


class Counts(TorchFunctionMode):
    """Counts what it is asked."""

    def __init__(self):
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Ones(torch.Tensor):
    """Its additions are ones; it notes what is asked."""

    seen = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.add:
            return torch.ones(2)
        return super().__torch_function__(func, types, args, kwargs or {})


@program(lambda: (torch.ones(2),))
def modes_counted(x):
    """How many modes there are, where all are switched off too."""
    with Zeros(), Zeros():
        with torch._C.DisableTorchFunction():
            inner = len_of_modes()
        return x + len_of_modes(), inner, len_of_modes()


@program(lambda: (torch.ones(2),))
def autocast_of_the_processor(x):
    """Each question about autocast has its own answer."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        told = torch.is_autocast_cpu_enabled(), torch.is_autocast_enabled(), torch.is_autocast_enabled("cpu")
        y = torch.mm(x.view(1, 2), x.view(2, 1))
    return y + 1 if told[0] else y - 1, told, torch.is_autocast_cpu_enabled()


@program(lambda: (torch.ones(2),))
def deterministic_for_a_while(x):
    """Deterministic algorithms switched on and back."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    inside = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    y = x.sin()
    torch.use_deterministic_algorithms(before)
    return y, inside, torch.are_deterministic_algorithms_enabled()


@program(lambda: (torch.arange(6.0).view(3, 2).as_subclass(Ones),))
def length_of_a_subclass(x):
    """``len`` asks the class as well."""
    with Counts() as mode:
        found = len(x), mode.count
    return found, torch.add(x, 2)


class Pair:
    """A container that torch's trees know."""

    def __init__(self, left, right):
        self.left = left
        self.right = right


torch.utils._pytree.register_pytree_node(Pair, lambda p: ((p.left, p.right), None), lambda parts, _: Pair(*parts))


@torch._dynamo.nonstrict_trace
def product(pair, more):
    """Not looked into."""
    return pair.left * pair.right + more["a"], more["a"].size(0)


@program(
    lambda: (torch.ones(3), torch.ones(3)),
    lambda: (torch.ones(4), torch.ones(4)),
    lambda: (torch.ones(5), torch.ones(5)),
)
def registered_container(x, y):
    """An object of a registered class given to what is not looked into; a size comes back."""
    pair = Pair(x, y)
    pair.left = pair.left + 1
    found, size = product(pair, {"a": y * 2})
    return found * size, pair.left


@program(
    lambda: (torch.ones(3, 4),),
    lambda: (torch.arange(16.0).view(4, 4).T,),
    lambda: (torch.arange(16.0).view(4, 4)[::2],),
    lambda: (torch.arange(200.0).view(10, 20)[:3, :5],),
)
def rows_of_larger_tensors(x):
    """Strides that are no sizes of any argument."""
    return x.select(0, 0).clone(), x.t() + 1


@program(lambda: (torch.arange(32.0).view(1, 2, 2, 8),), breaks=2)
def kernels_of_attention(q):
    """Attention kernels can be queried, switched for a function, and given call arguments."""
    given = torch.backends.cuda.SDPAParams(q, q, q, None, 0.0, False, False)
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(not before)
    inside = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(before)
    return _by_mathematics(given.query), before, inside, torch.nn.attention._cur_sdpa_kernel_backends()


@torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
def _by_mathematics(q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)


@program(lambda: (torch.ones(2), torch._C._dispatch_keys(torch.ones(1))))
def dispatch_keys(x, keys):
    """Sets of dispatch keys are values like numbers."""
    own = torch._C._dispatch_keys(x + 1)
    more = (torch._C._dispatch_tls_local_include_set() | own) - torch._C._dispatch_tls_local_exclude_set()
    y = x + 1 if keys.has("CPU") and more.highestPriorityTypeId() != torch.DispatchKey.PythonDispatcher else x - 1
    return y, own.raw_repr(), own == keys


class Halves(torch.nn.Module):
    """Its function is not looked into, and is told of fakes by another."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        (y,) = _by_sign(self, {"x": x})
        return y + 1


@torch._dynamo.decorators.leaf_function
def _by_sign(module, given):
    if given["x"].sum() > 0:
        return (module.inner(given["x"]),)
    return (module.inner(given["x"]) * 2,)


@_by_sign.register_fake
def _by_sign_of_fakes(module, given):
    return (module.inner(given["x"]),)


@program(lambda: (torch.ones(3, 2),), lambda: (-torch.ones(3, 2),))
class LeafWithModule(Halves):
    """A leaf function given a module and a dict."""


class Noted(BaseTorchFunctionMode):
    """Writes down by what tensors are indexed."""

    def __init__(self):
        self.keys = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            self.keys.append((func.__name__, type(args[1]).__name__))
        return super().__torch_function__(func, types, args, kwargs or {})


@program(
    lambda: (torch.arange(20.0).view(4, 5), torch.tensor(1), 2),
    lambda: (torch.arange(20.0).view(4, 5), torch.tensor(2), 1),
    lambda: (torch.arange(20.0).view(4, 5), torch.tensor(0), 3),
)
def keys_that_a_mode_sees(x, at, n):
    """A mode sees an index that is a one-element tensor or a changing number like any other."""
    mode = Noted()
    with mode:
        found = x[at] + x[n] + x[0, at] + x[1:3][0]
        x[at] = 7.0
        x[n] = 3
    return found, mode.keys


class Told:
    """Two tensors, which torch's trees know how to take apart."""

    def __init__(self, left, right):
        self.left = left
        self.right = right


torch.utils._pytree.register_pytree_node(Told, lambda p: ((p.left, p.right), None), lambda parts, _: Told(*parts))


# Older torches' leaves return something, and write nothing.
if "mutates_args" in inspect.signature(torch._dynamo.decorators.leaf_function).parameters:

    @torch._dynamo.decorators.leaf_function
    def _says(x):
        print("saying", x.sum().item())

    @_says.register_fake
    def _says_of_fakes(x):
        return None

    @torch._dynamo.decorators.leaf_function(mutates_args={"into"})
    def _adds(x, into):
        into.add_(x.detach())
        return (Told(x * 2, into + 1),)

    @_adds.register_fake
    def _adds_of_fakes(x, into):
        into.add_(x.detach())
        return (Told(x * 2, into + 1),)

    @program(lambda: (torch.ones(3), torch.zeros(3)))
    def leaf_with_effects(x, total):
        """Leaf functions print and return nothing, mutate declared arguments, or return objects."""
        _says(x)
        (told,) = _adds(x, total)
        return told.left + told.right, total * 2


class Indexed(TorchFunctionMode):
    """What is read at an index is a seven; what is written there fills everything."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            return torch.full((), 7.0)
        if func is torch.Tensor.__setitem__:
            args[0].fill_(args[2])
            return None
        return func(*args, **(kwargs or {}))


class Fives(torch.Tensor):
    """What is read from it at an index is a five."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            return torch.full((), 5.0)
        return super().__torch_function__(func, types, args, kwargs or {})


@program(lambda: (torch.ones(2, 3), torch.tensor(1)), lambda: (torch.ones(2, 3).as_subclass(Fives), torch.tensor(0)))
def modes_and_classes_see_positions(x, i):
    """Modes and classes see indices that are one-integer tensors like any other index."""
    y = x * 2
    with Indexed():
        y[i] = 3.0
        y[0, i] = 4.0
        inside = x[i], x[0, i], x[1:]
    return inside, x[i], x[1, i], y


@program(lambda: (torch.rand(2, 4) > 0.3, torch.tensor(2)))
def positions_in_rows(mask, n):
    """Under ``TransformGetItemToIndex``, mask functions run for each pair of positions."""

    def allowed(row, at):
        return mask[row, at] & (at < n)

    with TransformGetItemToIndex():
        rows = torch.vmap(torch.vmap(allowed, in_dims=(None, 0)), in_dims=(0, None))
        return rows(torch.arange(2), torch.arange(4)), mask[n - 1], mask[0, n]
