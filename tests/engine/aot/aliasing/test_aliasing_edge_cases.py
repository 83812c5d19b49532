"""Test rare memory operations, each of which differs from eager in one fact only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from tests.torch_internals import TwoTensor

LEAF = "a leaf Variable that requires grad is being used in an in-place operation"


def _squeezed_in_place(x: Any) -> Any:
    x.squeeze_()
    return x * 2


def _swapped_in_place_and_detached(x: Any) -> Any:
    x.swapaxes_(1, 1)
    return x.detach()


@pytest.mark.parametrize("fn", [_squeezed_in_place, _swapped_in_place_and_detached])
def test_a_leaf_is_not_changed_in_place_by_code_compiled_for_another_tensor(fn: Callable[..., Any]) -> None:
    """An in-place change that keeps data and layout still raises eager's error on a leaf.

    It does so whether the code was compiled for a leaf or not.
    """
    compiled = engine.compile(fn, backend="aot_eager")
    made = torch.ones(4, 4, requires_grad=True) * 1.5
    assert compiled(made).equal(fn(torch.ones(4, 4) * 1.5))
    with pytest.raises(RuntimeError, match=LEAF):
        compiled(torch.ones(4, 4, requires_grad=True))


@pytest.mark.parametrize("is_used", [True, False])
def test_as_strided_past_the_end_of_what_was_made_inside(is_used: bool) -> None:
    """``as_strided`` beyond the storage raises, even if unused; covering all of it does not."""

    def fn(x: Any, offset: int) -> Any:
        made = x.new_full((2,), 3)
        seen = made.as_strided((1,), (1,), offset)
        return seen + x if is_used else x * 2

    one = torch.ones(1)
    assert engine.compile(fn, backend="aot_eager")(one, 1).equal(fn(one, 1))
    engine.reset()  # compiled for this offset at first, not for any
    with pytest.raises(RuntimeError, match="are out of bounds for storage of size 8"):
        engine.compile(fn, backend="aot_eager")(one, 2)


def test_views_without_elements_do_not_make_memory_longer() -> None:
    """An in-place change to a view past the end of an empty storage keeps it empty.

    The whole tensor is passed beside the view.
    """

    def fn(x: Any, y: Any) -> Any:
        y.unsqueeze_(0)
        return x.exp()

    x = torch.zeros(0, dtype=torch.int64).as_strided((3, 0), (1, 3))
    engine.compile(fn, backend="aot_eager")(x, y := x[1:])
    assert (x.untyped_storage().nbytes(), y.shape) == (0, (1, 2, 0))


@pytest.mark.parametrize("is_split_inside", [True, False])
def test_only_views_made_by_operators_that_make_several_are_closed_to_writes(is_split_inside: bool) -> None:
    """The ``chunk`` history of the first call's input does not affect views of later inputs."""

    def fn(x: Any) -> Any:
        return x.chunk(2)[0] if is_split_inside else x[1:]

    several = "function that returns multiple views"
    compiled = engine.compile(fn, backend="aot_eager")
    for given, reason in (
        (torch.ones(8, requires_grad=True).mul(1).chunk(2)[0], several),
        (torch.ones(4, requires_grad=True).mul(1), several if is_split_inside else ""),
    ):
        for run in (fn, compiled):
            view = run(given)
            if reason:
                with pytest.raises(RuntimeError, match=reason):
                    view.mul_(2)
            elif run is compiled:
                assert view.mul_(2).equal(torch.full((3,), 2.0))


def _int_div(x: Any) -> Any:
    x.clone().div_(2)
    return x * 1


def _bool_mul(x: Any) -> Any:
    x.clone().mul_(2)
    return x * 1


def _complex_order(x: Any) -> Any:
    torch.where(x > 0, x, x)
    return x * 1


@pytest.mark.parametrize(
    ("fn", "dtype", "reason"),
    [
        (_int_div, torch.int64, "can't be cast to the desired output type Long"),
        (_bool_mul, torch.bool, "can't be cast to the desired output type Bool"),
        (_complex_order, torch.complex64, "not implemented for 'ComplexFloat'"),
    ],
)
def test_what_types_forbid_is_an_error_though_nobody_reads_it(
    fn: Callable[..., Any], dtype: torch.dtype, reason: str
) -> None:
    """Unsupported dtypes raise eager's error even if the result is unused.

    Eager's kernels reject some dtypes that fake tensors accept. Which ones depends on the torch version.
    """

    def said(run: Callable[..., Any]) -> str:
        try:
            run(torch.ones(4, dtype=dtype))
        except RuntimeError as error:
            return str(error)
        return ""

    plain = said(fn)
    assert reason in plain or not plain
    assert said(engine.compile(fn, backend="aot_eager")) == plain


@pytest.mark.parametrize("region", [torch.no_grad(), torch.autocast("cpu")])
def test_a_failure_to_trace_under_a_mode_leaves_the_callers_modes(region: Any) -> None:
    """A failed ATen trace inside a region restores the caller's grad and autocast modes.

    The graph then runs with the gradients and dtypes of eager.
    """

    def fn(x: Any, w: Any) -> Any:
        y = x.transpose(0, -1)
        y.scatter_(0, torch.zeros_like(y, dtype=torch.int64), 2)
        with region:
            x.view(torch.complex64)
        return x @ w

    def result(run: Callable[..., Any]) -> tuple[Any, ...]:
        leaf = torch.ones(3, 4, requires_grad=True)
        out = run(leaf * 1.5, torch.ones(4, 2))
        out.sum().backward()
        return out.dtype, out.tolist(), leaf.grad

    plain, ours = result(fn), result(engine.compile(fn, backend="aot_eager"))
    assert plain[:2] == ours[:2]
    assert plain[2].equal(ours[2])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_on_a_leaf_comes_after_the_same_writes() -> None:
    """What is written before the error is written once."""

    def fn(x: Any) -> None:
        with torch.no_grad():
            x.add_(x)
        x.masked_fill_(x > 0, 0.5)

    compiled = engine.compile(fn, backend="aot_eager")
    compiled(torch.ones(3, requires_grad=True) * 1)
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=LEAF) as error:
        compiled(leaf)
    assert (leaf.tolist(), leaf._version) == ([2.0, 2.0, 2.0], 1)
    assert error.value.__context__ is None


def test_memory_of_data_that_comes_to_need_gradients() -> None:
    """A write into ``x.data`` of a value that requires grad gives it an autograd history."""

    def fn(x: Any) -> Any:
        data = x.data
        data.sub_(x * 2)
        return data

    compiled = engine.compile(fn, backend="aot_eager")
    for run in (fn, compiled):
        out = run(torch.ones(3, requires_grad=True) * 1)
        assert (out.requires_grad, out.tolist()) == (True, [-1.0, -1.0, -1.0])


def test_eager_compares_strides_before_it_writes_where_it_reads() -> None:
    """Reading the memory that is written to, seen with one dimension more, is eager's error."""

    def fn(x: Any) -> Any:
        x[None].sub_(x)
        return x * 1

    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        fn(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        engine.compile(fn, backend="aot_eager")(torch.ones(2, 3))


def test_a_write_through_data_guards_that_inputs_stay_apart() -> None:
    """A write through ``x.data`` is visible in a later call whose other input aliases it.

    The first call compiles for inputs that do not share memory.
    """

    def fn(x: Any, y: Any) -> Any:
        x.data.mul_(2)
        return y.sum()

    compiled = engine.compile(fn, backend="aot_eager")
    assert compiled(torch.ones(3), torch.ones(3)).item() == 3.0
    shared = torch.ones(3)
    assert compiled(shared, shared.view(3)).item() == 6.0


def test_a_view_made_without_gradients_remembers_it() -> None:
    """Writing to a view made under ``no_grad`` raises once its base requires a gradient.

    This holds even if the base required no gradient when the view was made.
    """

    def fn(x: Any) -> Any:
        with torch.no_grad():
            unseen = x[1:]
        return unseen, x[1:]

    for run in (fn, engine.compile(fn, backend="aot_eager")):
        x = torch.ones(3)
        unseen, seen = run(x)
        x.requires_grad_()
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            unseen.mul_(2)
        with pytest.raises(RuntimeError, match=LEAF.replace("a leaf", "a view of a leaf").partition(" that")[0]):
            seen.mul_(2)


def test_a_view_made_with_gradients_inside_of_a_call_without_them() -> None:
    """It may be written to where gradients are on."""

    def fn(x: Any) -> Any:
        with torch.enable_grad():
            return x[1:]

    for run in (fn, engine.compile(fn, backend="aot_eager")):
        leaf = torch.ones(3, requires_grad=True)
        x = leaf * 1
        plain = torch.ones(3)
        with torch.no_grad():
            view, other = run(x), run(plain)
        assert view.mul_(2).tolist() == [2.0, 2.0]
        assert other.mul_(x[1:].detach()).tolist() == [2.0, 2.0]


def test_numbers_written_where_truths_are_seen() -> None:
    """Bytes that are no truth values stay what they are."""

    def fn(x: Any) -> Any:
        x.view(torch.int32).fill_(4)
        return x.view(torch.int32)

    plain, ours = (run(torch.ones(4, dtype=torch.bool)) for run in (fn, engine.compile(fn, backend="aot_eager")))
    assert plain.tolist() == ours.tolist() == [4]


def test_a_layout_changed_without_gradients_beside_a_view() -> None:
    """``transpose_`` under ``no_grad`` keeps the tensor's ``grad_fn``.

    Its view keeps the sizes that the gradients must have.
    """

    def fn(x: Any, y: Any) -> None:
        with torch.no_grad():
            y.clamp_(-1, 1)
            x.transpose_(0, -1)

    def result(run: Callable[..., Any]) -> Any:
        leaf = torch.arange(9.0).view(3, 3).requires_grad_()
        x = leaf * 0.1
        y = x.view(-1)
        run(x, y)
        return torch.autograd.grad(x, leaf, torch.arange(9.0).view(3, 3))[0], x.stride(), type(x.grad_fn).__name__

    plain, ours = result(fn), result(engine.compile(fn, backend="aot_eager"))
    assert torch.equal(plain[0], ours[0])
    assert plain[1:] == ours[1:]


def test_what_an_operator_gives_back_is_its_operand_for_symbols_too() -> None:
    """Disabled dropout returns its argument itself, so a write through one shows in the other."""

    def fn(x: Any) -> Any:
        same = torch.nn.functional.dropout(x, 0.5, False)
        same.mul_(2)
        return x + 1, same

    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(fn, backend="aot_eager", dynamic=True)
        for size in (3, 5):
            x, y = torch.ones(size), torch.ones(size)
            (total, same), (expected, _) = compiled(x), fn(y)
            assert same is x
            assert (x.tolist(), total.tolist()) == (y.tolist(), expected.tolist())
    assert [(c.aot.mode, c.aot.note) for c in session.compilations if c.aot is not None] == [("inference", "")]


def _inference_tensor() -> Any:
    with torch.inference_mode():
        return torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    ("fn", "gives_views"),
    [
        (lambda x, y: (x.view(-1), x.t(), x, x.detach(), x[0] + 1), True),
        (lambda x, y: (y.add_(x), (x @ y.t()).relu(), x.split(1)[1]), True),
        (lambda x, y: (y.add_(x), (x @ y.t()).relu(), x), False),
        (lambda x, y: (torch.add(x, 1, out=y), y[1:]), False),
    ],
)
def test_inference_tensors_are_read_outside_of_their_mode(fn: Callable[..., Any], gives_views: bool) -> None:
    """Results computed from inference tensors match eager.

    Views of inference tensors are inference tensors. The graph is functional unless it returns views.
    """
    engine.reset()
    with engine.record() as session:
        results = [run(_inference_tensor(), torch.ones(2, 3)) for run in (fn, engine.compile(fn, backend="aot_eager"))]
    for plain, ours in zip(*results, strict=True):
        assert plain.is_inference() == ours.is_inference()
        assert plain.tolist() == ours.tolist()
    (note,) = [c.aot.note for c in session.compilations if c.aot is not None]
    assert ("shares memory with an inference tensor" in note) if gives_views else note == ""


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda x: (x.mul_(2), x.view(-1), x + 1), ""),
        (lambda x: (x[0], x.view(-1)), "created in inference mode"),
        (lambda x: (x.chunk(2)[0], x + 1), "created in inference mode"),
    ],
)
def test_views_made_in_inference_mode(fn: Callable[..., Any], error: str) -> None:
    """A function in inference mode may mutate its arguments and return views of them.

    The caller may not write to these views outside of the function.
    """

    def result(run: Callable[..., Any]) -> Any:
        x = torch.ones(2, 3, requires_grad=True) * 1
        made = run(x)
        said = ""
        try:
            made[0].mul_(2)
        except RuntimeError as raised:
            said = str(raised)
        return x.tolist(), x._version, [(t.tolist(), t.is_inference(), t._is_view()) for t in made], said

    decorated = torch.inference_mode()(fn)
    engine.reset()
    with engine.record() as session:
        plain, ours = result(decorated), result(engine.compile(decorated, backend="aot_eager"))
    assert plain == ours
    assert error in ours[-1]
    assert [c.aot.note for c in session.compilations if c.aot is not None] == [""]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.absolute_(), x[0]),
        lambda x: (x.swapaxes_(0, 1),),
        lambda x: (torch.absolute(x, out=x), x.mT),
        lambda x: (x.flatten(), x.multiply_(2)),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_operators_made_of_others_write_in_inference_mode(fn: Callable[..., Any], backend: str) -> None:
    """Though fakes keep no account of what they write, or view, there."""

    def result(run: Callable[..., Any]) -> Any:
        x = -torch.arange(6.0).view(2, 3)
        made = run(x)
        return [(t.tolist(), t.stride(), t._version, t._base is x) for t in (x, *made)]

    engine.reset()
    decorated = torch.inference_mode()(fn)
    assert result(engine.compile(decorated, backend=backend)) == result(decorated)


def test_a_layout_changed_where_sizes_vary() -> None:
    """Dimensions that change places are told apart though their sizes are one symbol."""

    def fn(x: Any) -> Any:
        x.mul_(2)
        x.swapaxes_(0, -1)
        return x + 1

    engine.reset()
    compiled = engine.compile(fn, backend="aot_eager", dynamic=True)
    for size in (3, 5):
        x, y = (torch.arange(float(size * size)).view(size, size) for _ in range(2))
        out, expected = compiled(x), fn(y)
        assert (x.tolist(), x.stride(), out.tolist()) == (y.tolist(), y.stride(), expected.tolist())


def _one_of_two() -> torch.Tensor:
    return torch.arange(6.0).view(2, 3).requires_grad_().chunk(2)[0]


def test_what_may_not_be_viewed_any_more_is_written_to_once() -> None:
    """A ``chunk`` result mutated under ``no_grad`` is written once and can still be detached.

    Autograd allows no view of such a tensor after the write.
    """

    def added(x: torch.Tensor) -> Any:
        with torch.no_grad():
            x.add_(1)
        return x.detach()

    def through_a_view(x: torch.Tensor) -> Any:
        y = x.view_as(x)
        with torch.no_grad():
            y.add_(1)
        return y.detach()[:1], y.data

    for function in (added, through_a_view):
        found = []
        for run in (function, engine.compile(function, backend="aot_eager")):
            x = _one_of_two()
            out = run(x)
            first = out[0] if isinstance(out, tuple) else out
            found.append((x.detach().tolist(), x._version, first.tolist(), first._version, first.requires_grad))
        assert found[0] == found[1]


def test_layout_changed_in_place_where_sizes_vary() -> None:
    """Arguments are compared with the layout at the call, so a third size needs no recompile."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        x.t_()
        return x.sin()

    engine.reset()
    run = engine.compile(turned, backend="aot_eager")
    with engine.record() as session:
        for n in (3, 4, 5, 6):
            mine, theirs = torch.randn(n, n + 2), torch.empty(n, n + 2)
            theirs.copy_(mine)
            torch.testing.assert_close(run(mine), turned(theirs))
            assert mine.shape == theirs.shape
    assert len(session.compilations) == 2
    assert not session.failures


@pytest.mark.parametrize("make", [torch.Tensor.clone, lambda x: TwoTensor(x.clone(), x.clone())])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_tensor_that_is_resized_keeps_its_base(make: Callable[[Any], Any]) -> None:
    """``out=`` may resize a view, also one of a subclass: the base does not get the result."""

    def fn(x: Any) -> Any:
        made = x * 1
        torch.add(x, 1, out=made[0])
        return made

    x = make(torch.ones(2, 2))
    with engine.record() as session:
        made = engine.compile(fn, backend="aot_eager")(x)
    assert torch.equal(made, fn(x))
    assert "resizes its out= tensor" in str(session.compilations[0])


def test_a_product_of_static_sizes_beside_symbols_is_no_view() -> None:
    """With symbols in a trace, a product of static sizes is no view either."""

    def fn(x: Any, w: Any, counted: Any) -> Any:
        return counted * 2, x @ w

    x, w = torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3, 4, requires_grad=True)
    compiled = engine.compile(fn, backend="aot_eager")
    for n in (3, 4):
        facts = [[(t._is_view(), t._version) for t in run(x, w, torch.ones(n))] for run in (fn, compiled)]
        assert facts[0] == facts[1]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_products_with_a_vector_are_no_views(dynamic: bool | None, needs_grad: bool) -> None:
    """Native products squeeze a new result in place, which counts in its version."""

    def fn(x: Any, w: Any) -> Any:
        return F.linear(x, w), x.matmul(w.t()), x @ w.t(), F.linear(x, w).add_(1), (x @ w.t())[1:]

    x, w = torch.randn(3), torch.randn(4, 3, requires_grad=needs_grad)
    facts = [
        [(t._is_view(), t._version, t._base is None) for t in run(x, w)]
        for run in (fn, engine.compile(fn, backend="aot_eager", dynamic=dynamic))
    ]
    assert facts[0] == facts[1]
