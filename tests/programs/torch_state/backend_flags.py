"""Switches that torch keeps as attributes of its modules: read, and set, in compiled code."""

from __future__ import annotations

import torch

from tests.programs import program


def _with(holder, name, value):
    """A vector; the switch is set before the call."""
    setattr(holder, name, value)
    return (torch.arange(3.0),)


_CUDNN = torch.backends.cudnn


@program(
    lambda: _with(_CUDNN, "benchmark", False),
    lambda: _with(_CUDNN, "benchmark", True),
    lambda: _with(_CUDNN, "benchmark", False),
)
def read_between_calls(x):
    """A switch that changes between two calls is seen."""
    return x + 1 if torch.backends.cudnn.benchmark else x - 1


@program(
    lambda: _with(torch.utils.deterministic, "fill_uninitialized_memory", False),
    lambda: _with(torch.utils.deterministic, "fill_uninitialized_memory", True),
)
def property_of_a_module(x):
    """One that a module computes."""
    return x * 2 if torch.utils.deterministic.fill_uninitialized_memory else x


@program(
    lambda: (torch.__future__.set_overwrite_module_params_on_conversion(True), torch.ones(2))[1:],
    lambda: (torch.__future__.set_overwrite_module_params_on_conversion(False), torch.ones(2))[1:],
)
def global_of_torch(x):
    """One that is a global variable of torch's own code, read by a function of torch's."""
    return x * 2 if torch.__future__.get_overwrite_module_params_on_conversion() else x


@program(lambda: _with(_CUDNN, "benchmark", False), lambda: _with(_CUDNN, "benchmark", True))
def set_and_put_back(x):
    """Set, read, used, and put back."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not before
    y = x + 1
    inside = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before
    return y * 2, before, inside, torch.backends.cudnn.benchmark


@program(lambda: _with(torch.backends.cuda.matmul, "allow_tf32", False))
def left_set(x):
    """What compiled code sets stays set, each time it runs."""
    seen = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    return x * 3, seen, torch.backends.cuda.matmul.allow_tf32


@program(lambda: (torch.arange(3.0),), breaks=1)
def put_back_after_a_break(x):
    """A switch that was set before a break is set after it."""
    torch.backends.cudnn.deterministic = True
    y = x + 1
    torch._dynamo.graph_break()
    inside = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = False
    return y, inside, torch.onnx.is_in_onnx_export()


@program(lambda: (torch.arange(3.0),))
def device_of_none(x):
    """A context that selects a device of the GPU, here none."""
    with torch.cuda.device(-1):
        y = x + 1
    return y * 2


@program(lambda: (torch.randn(3),))
def device_as_a_context(x):
    """The innermost device context places factory results; existing tensors stay in place."""
    with torch.device("meta") as device:
        far = torch.ones(3), torch.zeros_like(x), torch.get_default_device()
        with torch.device("cpu"):
            near = torch.ones(2)
    return far, near, torch.arange(2), device


@program(lambda: (torch.randn(3, requires_grad=True),))
def set_grad_enabled_as_a_decorator(x):
    """Deciding the mode of a function leaves the mode as it was."""
    with torch.no_grad():

        @torch.set_grad_enabled(True)
        def inner(y):
            return y.sin(), torch.is_grad_enabled()

        mode = torch.is_grad_enabled()
        return inner(x), mode


@torch.fx.traceback.annotate({"part": 0})
def annotated(x):
    return x.sin()


@torch.backends.cudnn.flags(enabled=False)
def without_cudnn(x):
    return x + 1, torch.backends.cudnn.enabled


@program(lambda: (torch.randn(3),))
def contexts_that_decorate(x):
    """A function decorated with a generator-based context enters a new one at each call."""
    return annotated(x) + annotated(x), without_cudnn(x), torch.backends.cudnn.enabled
