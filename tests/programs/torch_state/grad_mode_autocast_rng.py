"""torch state: random numbers, default dtype and device, autocast, grad modes, profiling."""

import contextlib

import torch

from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def inference_tensor():
    with torch.inference_mode():
        return (torch.randn(3),)


@program(lambda: (torch.randn(3),))
def seeded(x):
    """manual_seed inside."""
    torch.manual_seed(7)
    return x + torch.rand(3), torch.randn(2)


@program(lambda: (torch.randn(3),))
def state_kept(x):
    """get_rng_state and set_rng_state: the same numbers twice."""
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    return a + x, torch.rand(3)


@program(lambda: (torch.randn(3),))
def forked(x):
    """fork_rng: the numbers drawn inside do not count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        inside = torch.rand(3)
    return inside + x, torch.rand(3)


GENERATOR = torch.Generator()


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def own_generator(x):
    """A generator of the module's draws, and keeps its state."""
    return x + torch.rand(3, generator=GENERATOR), torch.randperm(5, generator=GENERATOR)


@program(lambda: (torch.randn(3), torch.Generator().manual_seed(5)))
def generator_argument(x, generator):
    """A generator as argument; seeded inside."""
    a = torch.rand(3, generator=generator)
    generator.manual_seed(1)
    return a + x, torch.rand(2, generator=generator), generator.device


@program(lambda: (torch.randn(3),))
def generator_made(x):
    """A generator made inside."""
    generator = torch.Generator(device="cpu")
    generator.manual_seed(11)
    return x * torch.rand(3, generator=generator)


@program(lambda: (torch.randn(3),))
def default_dtype(x):
    """set_default_dtype inside, and back."""
    torch.set_default_dtype(torch.float64)
    made = torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return made + x, torch.get_default_dtype()


@program(lambda: (torch.randn(3),))
def device_context(x):
    """A device as a context."""
    with torch.device("cpu"):
        made = torch.ones(3)
    return made + x


@program(lambda: (torch.randn(3),))
def meta_device_context(x):
    """Tensors without memory."""
    with torch.device("meta"):
        made = torch.ones(3, 4)
    return made.shape, made.device, (made @ made.t()).device, x * 2


@program(lambda: (leaf(3, 3), torch.randn(3, 3)))
def autocast_nested(x, y):
    """autocast with all its arguments, nested, and switched off inside."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True, cache_enabled=True):
        a = x @ y
        with torch.autocast(device_type="cpu", enabled=False):
            b = x @ y
        c = torch.nn.functional.linear(y, x)
    return a, b, c, torch.is_autocast_enabled("cpu")


@torch.autocast("cpu", dtype=torch.bfloat16)
def lowered(x, y):
    return x @ y


@program(lambda: (torch.randn(3, 3), torch.randn(3, 3)))
def autocast_decorator(x, y):
    """autocast as a decorator of a helper."""
    return lowered(x, y), x @ y


USED = torch.autocast("cpu", dtype=torch.bfloat16)
with USED:
    pass


@program(lambda: (torch.randn(3, 3),), breaks=1)
def autocast_used_before(x):
    """An instance that was entered and left before is entered again, also around a break."""
    with USED:
        y = x @ x
    with USED:
        print("inside")
        z = x @ x
    return y, z, x @ x


@program(lambda: (torch.randn(3, 3),))
def autocast_asked(x):
    """Questions about autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), x.mm(x)


@program(lambda: (torch.randn(3),))
def inference_inside(x):
    """inference_mode inside."""
    with torch.inference_mode():
        y = x * 2
        inside = torch.is_inference_mode_enabled()
    return inside, y.sum(), torch.is_inference_mode_enabled()


@program(lambda: (torch.randn(3),))
@torch.inference_mode()
def inference_decorator(x):
    """inference_mode as a decorator of the root."""
    return x * 2


@torch.inference_mode()
def evaluated(x):
    return x.exp()


@program(inference_tensor, inference_tensor)
def written_alias_of_an_inference_tensor(x):
    """Outside of inference mode, a detached alias may be mutated."""
    x.detach().add_(1)
    return x * 2


@program(inference_tensor)
def written_view_of_an_inference_tensor(x):
    """The write happens, and then raises."""
    try:
        x.view(-1).add_(1)
    except RuntimeError as error:
        return x * 2, str(error)[:14]


@program(lambda: (torch.randn(3),))
def inference_helper(x):
    """inference_mode as a decorator of a helper."""
    return evaluated(x).sum()


@program(lambda: (leaf(3),))
def grad_switched_by_call(x):
    """set_grad_enabled as a call, in force until it is called again."""
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, x * 3


@torch.set_grad_enabled(False)
def without_grad(x):
    return x * 2


@program(lambda: (leaf(3),))
def grad_decorator(x):
    """set_grad_enabled as a decorator."""
    return without_grad(x), x * 3


@program(lambda: (torch.randn(3),))
def profiled(x):
    """record_function as a context and as a decorator."""
    with torch.profiler.record_function("inside"), torch.autograd.profiler.record_function("again"):
        y = x.sin()
    return named(y)


@torch.profiler.record_function("helper")
def named(x):
    return x.cos()


@program(lambda: (torch.randn(2, 2, 4, 4),))
def attention_kernel_chosen(q):
    """The context that chooses among kernels of attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)


@program(lambda: (torch.randn(2, 2, 4, 4),))
def attention_kernels_chosen(q):
    """Several kernels allowed."""
    with torch.nn.attention.sdpa_kernel(
        [torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION]
    ):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


@program(lambda: (torch.randn(3),))
def deterministic_asked(x):
    """Questions about deterministic algorithms and other switches."""
    if torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
        return x
    return x * 2, torch.is_grad_enabled(), torch.get_float32_matmul_precision()


@program(lambda: (torch.randn(3),))
def compiling_asked(x):
    """Traced code is told that it is being compiled: results do not depend on it here."""
    return x + 1 if torch.compiler.is_compiling() else x + 1, torch.jit.is_scripting(), torch.jit.is_tracing()


@program(lambda: (torch.randn(3),))
def stream_asked(x):
    """Streams and events of an accelerator that may be absent."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return x * torch.cuda.device_count()


@program(lambda: (torch.randn(4, 4),))
def determinism_of_dropout(x):
    """Dropout draws as it does without compiling."""
    return torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(x, 0.3, training=False), torch.rand(1)


@program(lambda: (torch.randn(3),))
def grad_mode_object(x):
    """A context object made first, entered twice."""
    off = torch.no_grad()
    with off:
        a = torch.is_grad_enabled()
    with off:
        b = torch.is_grad_enabled()
    return x * 2, a, b, torch.is_grad_enabled()


@program(lambda: (leaf(3),))
def saved_tensor_hooks(x):
    """Hooks on what autograd saves."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        y = x.sin() * x
    return y


@program(lambda: (leaf(3),))
def anomaly_asked(x):
    """detect_anomaly is off; multithreading is a switch too."""
    return x * 2, torch.is_anomaly_enabled()


@program(lambda: (torch.randn(8),))
def normal_distribution(x):
    """A distribution made inside: its checks do not break the graph."""
    d = torch.distributions.Normal(x, x.abs() + 1)
    return d.log_prob(x + 1), d.mean, d.rsample(), d.entropy()


@program(lambda: (torch.randn(4, 3),))
def categorical_distribution(x):
    """Categorical, Bernoulli, and a divergence."""
    d = torch.distributions.Categorical(logits=x)
    e = torch.distributions.Categorical(logits=x + 1)
    b = torch.distributions.Bernoulli(probs=x.sigmoid())
    return d.sample(), d.log_prob(torch.tensor([0, 1, 2, 0])), torch.distributions.kl_divergence(d, e), b.sample()


@program(lambda: (torch.randn(4, 3),))
def distributions_more(x):
    """Independent, transformed, multivariate."""
    n = torch.distributions.Independent(torch.distributions.Normal(x, torch.ones_like(x)), 1)
    u = torch.distributions.Uniform(x, x + 2)
    ln = torch.distributions.LogNormal(x, torch.ones_like(x))
    return n.log_prob(x + 1), u.rsample(), ln.log_prob(x.exp()), n.batch_shape, n.event_shape


@program(lambda: (torch.randn(1, 2, 6), torch.randn(3, 2, 3)), breaks=1)
def kernel_library_switched(x, w):
    """The flags of a library of kernels hold within a block, across a break, and not after it."""
    with torch.backends.cudnn.flags(enabled=False, deterministic=True):
        y = torch.nn.functional.conv1d(x, w)
        print("inside", torch.backends.cudnn.deterministic)
        z = y.relu() * 2
    return z, torch.nn.functional.conv1d(z, torch.ones(1, 3, 2)), torch.backends.cudnn.deterministic


@program(lambda: (torch.randn(3, 3), torch.randn(3, 3)), breaks=1)
def autocast_left_after_a_break(x, y):
    """Autocast that was entered before a graph break ends in the graph after it."""
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ y
        print("in between")
        b = a @ y
    return a, b, x @ y, torch.is_autocast_enabled("cpu")


@program(lambda: (torch.randn(3, 3, requires_grad=True),))
def contexts_reached_otherwise(x):
    """Contexts on an ``ExitStack``, for one device type, and one that forbids saved hooks."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        y = x.sin()
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        z = x @ x
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return y, z, x * x, torch.is_grad_enabled()


@program(lambda: (torch.randn(3, requires_grad=True),), breaks=1)
def decorated_across_a_break(x):
    """Functions decorated by each kind of context are called before and after a break."""

    def double(a):
        return a * 2

    plain = torch.no_grad()(double)
    switched = torch.set_grad_enabled(False)(double)
    lowered = torch.autocast("cpu", dtype=torch.bfloat16)(lambda a: a.view(1, 3) @ a.view(3, 1))
    before = plain(x), switched(x), lowered(x)
    print("inside")
    return before, plain(x), switched(x), lowered(x), double(x), torch.is_grad_enabled()


@program(lambda: (torch.randn(3),), breaks=1)
def context_of_autocast_has_other_names(x):
    """The arguments of autocast are no attributes of the context."""
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    with context:
        y = x * 2
    return y, hasattr(context, "dtype"), hasattr(context, "device")


@program(*[lambda n=n: (torch.arange(n * 2.0).reshape(n, 2),) for n in (2, 3, 4)])
@torch.inference_mode()
def inference_decorator_with_other_sizes(x):
    """A decorated root whose sizes change, with a view of its argument."""
    return x * 2, x[0]


@program(lambda: (torch.randn(6),))
def versions_of_writes_in_inference_mode(x):
    """Each write to a tensor from outside counts once, also one of an inference tensor."""
    with torch.inference_mode():
        new = x[1].clone()
        x.index_put_((torch.tensor(0),), new)
        x.copy_(x * 2)
        x.masked_fill_(x > 0, 2)
        x.absolute_()
    return x._version
