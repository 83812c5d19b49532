"""The state of autocast, read and set by single functions."""

import torch
from torch.overrides import TorchFunctionMode

from tests.programs import program


def matrix_under(dtype):
    """A matrix; autocast on the CPU computes in this dtype by default."""
    torch.set_autocast_dtype("cpu", dtype)
    return (torch.randn(3, 3),)


_BFLOAT16 = [lambda: matrix_under(torch.bfloat16)]
_TWO_DTYPES = (*_BFLOAT16, lambda: matrix_under(torch.float16), *_BFLOAT16)


@program(*_TWO_DTYPES)
def default_dtype(x):
    """A context without a dtype takes the one that is set."""
    with torch.autocast("cpu"):
        y = x @ x
    return y, x @ x


def _dtype():
    return torch.get_autocast_dtype("cpu")


@program(*_TWO_DTYPES)
def default_dtype_in_a_callee(x):
    """It is read although autocast is off."""
    return _dtype(), x + 1


@program(*_BFLOAT16)
def entered_by_hand(x):
    """What ``torch.autocast`` does inside."""
    torch.autocast_increment_nesting()
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    y = x @ x
    depth = torch.autocast_decrement_nesting()
    if depth == 0:
        torch.clear_autocast_cache()
    torch.set_autocast_enabled("cpu", False)
    return y, depth, x @ x, torch.get_autocast_dtype("cpu")


@program(*_BFLOAT16, *_BFLOAT16)
def left_on(x):
    """Each call leaves autocast in the other state."""
    was = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", not was)
    return x @ x, was


@program(*_BFLOAT16, breaks=1)
def on_across_a_break(x):
    """Autocast stays on after a graph break."""
    torch.set_autocast_enabled("cpu", True)
    y = x @ x
    torch._dynamo.graph_break()
    z = x @ x
    torch.set_autocast_enabled("cpu", False)
    return y, z, x @ x


@program(lambda: (torch.randn(3, requires_grad=True),))
def saved_tensors_hooks_disabled(x):
    """Hooks on saved tensors raise while they are disabled."""
    torch._C._autograd._saved_tensors_hooks_disable("no hooks")
    y = x.sin() * x
    try:
        with torch.autograd.graph.save_on_cpu():
            z = x.cos() * y
    except RuntimeError as error:
        z = str(error)
    torch._C._autograd._saved_tensors_hooks_enable()
    return y * 2, z


class Passive(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@program(lambda: (torch.randn(3),))
def is_a_mode_enabled(x):
    """Asked outside and inside a mode, and where torch functions are disabled."""
    asked = [torch._C._is_torch_function_mode_enabled()]
    with Passive():
        asked.append(torch._C._is_torch_function_mode_enabled())
        with torch._C.DisableTorchFunction():
            asked.append(torch._C._is_torch_function_mode_enabled())
        with torch._C.DisableTorchFunctionSubclass():
            asked.append(torch._C._is_torch_function_mode_enabled())
    return x + 1, asked


def _warns_always(flag):
    """Set both switches; False is how torch starts."""
    torch.set_warn_always(flag)
    torch.autograd.set_multithreading_enabled(not flag)
    return (torch.randn(3),)


@program(lambda: _warns_always(False), lambda: _warns_always(True), lambda: _warns_always(False))
def switches_read(x):
    """Switches that change between two calls are seen."""
    return x + 1, torch.is_warn_always_enabled(), torch._C._is_multithreading_enabled(), torch.get_num_threads()


@program(lambda: (torch.randn(3),), lambda: (torch.full((3,), 200.0),))
def check_of_a_tensor(x):
    """A condition on all elements: the error is eager's, and so are the effects before it."""
    x.add_(1)
    torch._check_tensor_all(x < 100, lambda: f"big {x}")
    x.mul_(2)
    return x + 1


@program(lambda: (torch.randn(3),))
def parameter_under_inference_mode(x):
    """A parameter of an inference tensor has no version."""
    with torch.inference_mode():
        p = torch.nn.Parameter(x.clone(), requires_grad=False)
        q = torch.nn.Parameter(x)
        y = p * 2 + q
    return y, q.requires_grad, p.is_inference()
