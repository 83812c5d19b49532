"""Plan of a distributed training step: ``engine.plan``."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import math
import pathlib
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from engine import forked_run
from engine.errors import BadArgument, PlanFailed
from engine.ir.user_code_files import display_name
from engine.planning.fake_world import PlannedTensorMode, fake_world
from engine.planning.observe_step import AllStepsObserved, StepObserver, user_line_of
from engine.planning.sharded_layers import ShardedLayers, parallel
from engine.planning.time_model import Hardware, hardware_from
from engine.records.plan import Plan, RankClass, rank_class
from engine.runtime.workers.fork import NO_BACKWARD_IN_FORK, is_fork_backward_error

MAX_SECONDS = 600.0
"""Seconds that planning one rank may take."""
FORKS_AT_ONCE = 2


def plan(
    target: Callable[..., Any] | str | pathlib.Path,
    *args: Any,
    world: int,
    mesh: Mapping[str, int] | str | None = None,
    ranks: Sequence[int] | None = None,
    steps: int = 2,
    device: str = "cuda",
    hardware: Mapping[str, float] | None = None,
    arguments: Sequence[str] = (),
    shard: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Plan:
    """Plan a distributed training step on one machine, without its devices.

    ``target`` runs as one rank of ``world`` ranks on fake tensors. Its own ``init_process_group``,
    ``init_device_mesh``, ``fully_shard``, ``parallelize_module``, DDP and ``torch.cuda`` calls are answered. The run
    ends after ``steps`` optimizer steps. It runs in a forked process, so nothing of it remains here; what it prints
    is discarded. Operators are observed as eager runs them, without the compiler's fusions. Collectives and bytes of
    live storages are exact; times come from a model.

    Args:
        target: a function, or the path of a script for torchrun.
        args: arguments of the function. Its tensors and modules are replaced by fake ones.
        world: number of ranks, at least two.
        mesh: sizes of the mesh by name, as ``{"dp": 8, "tp": 8}`` or ``"dp=8,tp=8"``. It is returned by
            an ``init_device_mesh`` with the same names; a function with a parameter ``mesh`` is given the mesh.
        ranks: ranks to plan; by default the first and the last. Equal ones become one class.
        steps: optimizer steps to run. The last one is shown: state and buckets are as in later steps.
        device: ``cuda`` or ``cpu``, the device that the ranks have.
        hardware: constants of the time model to replace, as ``{"inter_bandwidth": 25e9}``.
        arguments: command line of the script.
        shard: layers to shard otherwise than the program does, as ``{"up": RowwiseParallel()}``; None leaves a layer
            whole. Names are those in the program's ``parallelize_module``, and may have wildcards.
        kwargs: keyword arguments of the function.

    Raises:
        BadArgument: the world, the mesh or a rank is impossible.
        PlanFailed: the program raised an error; the message names its line.
    """
    program = dataclasses.replace(program_of(target, args, kwargs, arguments), shard=shard or {})
    return plan_program(program, world=world, mesh=mesh, ranks=ranks, steps=steps, device=device, hardware=hardware)


def plan_program(
    program: Program,
    *,
    world: int,
    mesh: Mapping[str, int] | str | None = None,
    ranks: Sequence[int] | None = None,
    steps: int = 2,
    device: str = "cuda",
    hardware: Mapping[str, float] | None = None,
) -> Plan:
    """Plan a program, with the arguments and errors of ``plan``."""
    sizes = validate_mesh(world, mesh)
    planned = validate_ranks(world, ranks)
    constants = hardware_from(hardware)
    ShardedLayers(program.shard)
    if steps < 1:
        raise BadArgument("A plan needs at least one step.")
    if device not in {"cuda", "cpu"}:
        raise BadArgument(f"The device of a plan must be 'cuda' or 'cpu', not {device!r}.")

    PlannedTensorMode()  # loads torch's modules of fake tensors here once, not in each forked process

    def plan_rank(rank: int) -> dict[str, Any]:
        return _plan_rank(program, rank, world, sizes, steps, device, constants)

    with ThreadPoolExecutor(FORKS_AT_ONCE) as pool:
        planned_ranks = list(pool.map(lambda rank: _run_rank_in_fork(plan_rank, rank), planned))
    classes = group_equal_ranks(planned_ranks)
    notes = [] if len(planned) == world else [_note_on_unplanned_ranks(planned, len(classes))]
    return Plan(program.name, world, sizes, device, dataclasses.asdict(constants), classes, tuple(notes))


def _note_on_unplanned_ranks(planned: Sequence[int], classes: int) -> str:
    if len(planned) == 1:
        return f"Only rank {planned[0]} was planned. engine.plan(..., ranks=[...]) plans more."
    which = " and ".join(map(str, planned)) if len(planned) < 3 else ", ".join(map(str, planned))
    alike = "are equal" if classes == 1 else "were planned"
    return f"Ranks {which} {alike}; others were not planned. engine.plan(..., ranks=[...]) plans more."


@dataclasses.dataclass(frozen=True)
class Program:
    """Program to plan: what runs, its name, and the namespaces of its code."""

    name: str
    run: Callable[[Any], Any]
    """Runs the program; it is given the mesh."""
    names: tuple[dict[str, Any], ...] = ()
    shard: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Styles of layers that replace the program's."""


def program_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Sequence[str]) -> Program:
    """Return the program of a function or script.

    Raises:
        BadArgument: there is no such script, or ``target`` is neither.
    """
    if not callable(target):
        try:
            path = pathlib.Path(target).expanduser()
        except TypeError:
            kind = type(target).__name__
            raise BadArgument(f"A plan needs a function or the path of a script, not {kind}.") from None
        if not path.is_file():
            raise BadArgument(f"There is no script {str(target)!r} to plan.")
        return Program(path.name, lambda mesh: _run_script(path, arguments))
    inner = inspect.unwrap(target)

    def run(mesh: Any) -> Any:
        takes_mesh = "mesh" in _parameters(inner) and "mesh" not in kwargs
        call_kwargs = {**kwargs, "mesh": mesh()} if takes_mesh else kwargs
        return target(*args, **call_kwargs)

    return Program(getattr(inner, "__qualname__", type(inner).__name__), run, (getattr(inner, "__globals__", {}),))


def _parameters(function: Any) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _run_script(path: pathlib.Path, arguments: Sequence[str]) -> None:
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


# One rank, in the forked process.


def _run_rank_in_fork(work: Callable[[int], dict[str, Any]], rank: int) -> RankClass:
    done = forked_run.run_in_fork(lambda: work(rank), seconds=MAX_SECONDS, blocks_effects=False)
    if done.ending is forked_run.RunEnd.TIMED_OUT:
        raise PlanFailed(rank, f"it took more than {MAX_SECONDS:.0f} seconds")
    if done.ending is not forked_run.RunEnd.RETURNED:
        raise PlanFailed(rank, done.problem.removeprefix("the re-run failed: "))
    if "error" in done.value:
        raise PlanFailed(rank, done.value["error"])
    return rank_class(done.value)


def _plan_rank(
    program: Program, rank: int, world: int, sizes: dict[str, int], steps: int, device: str, hardware: Hardware
) -> dict[str, Any]:
    gc.freeze()  # garbage of the parent is not freed in a copy: its threads are not here, its files are shared
    gc.disable()  # when cyclic garbage is freed would be chance; the observer frees it at the start of each step
    observer = StepObserver(hardware, groups_along(rank, sizes), steps)
    layers = ShardedLayers(program.shard)
    replacements = [(parallel, "parallelize_module", layers.wrap_parallelize_module(parallel.parallelize_module))]
    with fake_world(rank, world, sizes, device, observer, list(program.names), replacements):
        try:
            program.run(lambda: _device_mesh(sizes, world, device))
        except AllStepsObserved:
            pass
        except SystemExit as ended:
            if ended.code:
                return {"error": f"it exits with {ended.code!r}"}
        except Exception as error:
            return {"error": _describe_error(error, observer)}
        if problem := layers.problem():
            return {"error": problem}
        if not observer.storages.at:
            return {"error": "it runs no operator, so there is no step to plan"}
        return dataclasses.asdict(observer.result(rank))


def _device_mesh(sizes: dict[str, int], world: int, device: str) -> Any:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group()
    return torch.distributed.device_mesh.init_device_mesh(
        device, tuple(sizes.values()) or (world,), mesh_dim_names=tuple(sizes) or ("world",)
    )


def _describe_error(error: Exception, observer: StepObserver) -> str:
    file, line = user_line_of(error)
    where = f" at {display_name(file)}:{line}" if line else ""
    first = next(iter(str(error).strip().splitlines()), "")
    uneven = next((note for note in observer.notes if "do not divide" in note), "")
    if is_fork_backward_error(error):
        first = f"{NO_BACKWARD_IN_FORK[0].upper()}{NO_BACKWARD_IN_FORK[1:]}. Plan in a new process."
    return f"{type(error).__name__}{where}: {first}{f' {uneven}' if uneven else ''}"


def groups_along(rank: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the ranks along each dimension of the mesh that ``rank`` belongs to."""
    result, stride = {}, 1
    for name, size in reversed(list(sizes.items())):
        first = rank - rank // stride % size * stride
        result[name] = [first + i * stride for i in range(size)]
        stride *= size
    return result


def group_equal_ranks(planned_ranks: Sequence[RankClass]) -> tuple[RankClass, ...]:
    """Join ranks that are equal up to the names of their groups."""
    classes: dict[Any, RankClass] = {}
    for one in planned_ranks:
        key = (
            tuple((c.kind, c.dtype, c.bytes, c.group_size, c.phase, c.line) for c in (*one.setup, *one.collectives)),
            tuple((p.at, p.bytes) for p in one.curve),
            tuple((o.name, o.calls, o.flops, o.bytes) for o in one.operators),
        )
        same_class = classes.get(key)
        classes[key] = (
            one if same_class is None else dataclasses.replace(same_class, ranks=(*same_class.ranks, *one.ranks))
        )
    return tuple(classes.values())


# Arguments.


def validate_mesh(world: int, mesh: Mapping[str, int] | str | None) -> dict[str, int]:
    """Return the sizes of the mesh by name.

    Raises:
        BadArgument: the world is too small, or the mesh is no mesh of all ranks.
    """
    if not torch.distributed.is_available():
        raise BadArgument("This torch is built without torch.distributed, so a distributed step cannot be planned.")
    if not is_integer(world) or world < 2:
        raise BadArgument(f"A plan needs a world of at least two ranks, not {world!r}.")
    sizes: dict[str, int] = _sizes_of(mesh)
    if wrong := [n for n, s in sizes.items() if not is_integer(s) or s < 1]:
        raise BadArgument(f"The mesh dimension {wrong[0]!r} needs a positive whole size, not {sizes[wrong[0]]!r}.")
    if sizes and math.prod(sizes.values()) != world:
        text = " x ".join(f"{n}={s}" for n, s in sizes.items())
        raise BadArgument(f"The mesh {text} has {math.prod(sizes.values())} ranks, but the world has {world}.")
    return sizes


def _sizes_of(mesh: Any) -> dict[str, int]:
    return dict(mesh) if hasattr(mesh, "keys") else parse_mesh(mesh or "")


def is_integer(value: Any) -> bool:
    """Return True for integers."""
    return hasattr(value, "__index__")


def parse_mesh(text: str) -> dict[str, int]:
    """Return the sizes in ``dp=8,tp=8``.

    Raises:
        BadArgument: the text is of another form.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, size = (p.strip() for p in part.partition("="))
        if not name.isidentifier() or not size.isdecimal() or name in sizes:
            raise BadArgument(f"{text!r} is not a mesh: write names and sizes, for example dp=8,tp=8.")
        sizes[name] = int(size)
    return sizes


def validate_ranks(world: int, ranks: Sequence[int] | None) -> list[int]:
    """Return the ranks to plan, without repetition.

    Raises:
        BadArgument: a rank is not in the world.
    """
    planned = [0, world - 1] if ranks is None else list(dict.fromkeys(ranks))
    if not planned or any(not is_integer(r) or not 0 <= r < world for r in planned):
        raise BadArgument(f"Ranks to plan are numbers from 0 to {world - 1}, not {planned!r}.")
    return planned
