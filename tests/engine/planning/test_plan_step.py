"""Plans of distributed training steps agree with real processes, and leave no trace."""

import gc
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import engine
from engine.errors import BadArgument, PlanFailed
from engine.planning.fake_world import Chunks
from engine.planning.plan_step import groups_along
from engine.planning.time_model import Hardware, Timeline, length_outside, merge_intervals
from engine.records.plan import Plan

HERE = pathlib.Path(__file__).parent
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")


def load_programs():
    spec = importlib.util.spec_from_file_location("training_programs", HERE / "training_programs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAMS = load_programs().PROGRAMS
STEPS = load_programs().STEPS


WORLDS = dict.fromkeys(PROGRAMS, 2) | {"fsdp_uneven": 4}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Run each program in gloo processes; return what each rank measured, by program."""
    folder = tmp_path_factory.mktemp("measured")
    command = [sys.executable, str(HERE / "measure_eager.py"), str(folder), *(f"{p}:{n}" for p, n in WORLDS.items())]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stderr
    return {p: [json.loads((folder / f"{p}-{r}.json").read_text()) for r in range(n)] for p, n in WORLDS.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.forks_backward
def test_a_plan_agrees_with_real_processes(program, measured):
    """Collectives, bytes and peak of live storages are those of gloo processes."""
    real, world = measured[program], WORLDS[program]
    plan = engine.plan(PROGRAMS[program], world=world, device="cpu", steps=STEPS + 1, ranks=range(world))
    assert {r: c.peak_bytes for c in plan.classes for r in c.ranks} == {r: m["peak"] for r, m in enumerate(real)}
    steps = [
        engine.plan(PROGRAMS[program], world=world, device="cpu", steps=n, ranks=[0]).classes[0] for n in (1, 2, 3)
    ]
    planned = [c.bytes for c in steps[0].setup] + [c.bytes for s in steps for c in s.collectives]
    if program == "plain_collectives":
        planned = [c.bytes for c in steps[0].collectives]
    assert planned == real[0]["collectives"]


@pytest.mark.thorough
@pytest.mark.forks_backward
def test_ranks_differ_where_their_shards_do():
    """Ranks with unequal shards are a class of their own."""
    uneven, even = (engine.plan(PROGRAMS[p], world=4, device="cpu", ranks=range(4)) for p in ("fsdp_uneven", "fsdp"))
    assert [c.ranks for c in uneven.classes] == [(0, 1, 2), (3,)]
    assert [c.ranks for c in even.classes] == [(0, 1, 2, 3)]


@pytest.mark.thorough
@pytest.mark.forks_backward
@pytest.mark.parametrize("program", ["ddp", "fsdp", "tensor_parallel"])
def test_a_plan_for_cuda_has_the_same_collectives(program):
    """A plan for CUDA has the collectives of the plan for the CPU."""
    cpu, cuda = (
        engine.plan(PROGRAMS[program], d, world=8, device=d, ranks=[0], hardware={"devices_per_node": 4}).classes[0]
        for d in ("cpu", "cuda")
    )
    assert [(c.kind, c.bytes, c.phase) for c in cpu.collectives] == [
        (c.kind, c.bytes, c.phase) for c in cuda.collectives
    ]
    assert {c.link for c in cuda.collectives} == {"between nodes"}


@pytest.mark.thorough
@pytest.mark.forks_backward
def test_prefetched_gathers_are_hidden():
    """FSDP's gathers overlap computation on a GPU; on a CPU all are exposed."""
    cpu, cuda = (engine.plan(PROGRAMS["fsdp"], d, world=4, device=d, ranks=[0]).classes[0] for d in ("cpu", "cuda"))
    assert cpu.hidden_seconds == pytest.approx(0.0)
    assert cuda.hidden_seconds > 0


def test_a_tensor_moves_to_where_another_one_is():
    """``x.to(other)`` gives the device and dtype of ``other``, as RMSNorm under autocast asks."""

    def program():
        x, y = torch.ones(3, device="cuda", dtype=torch.bfloat16), torch.ones(3)
        for moved in (y.to(x), y.to(other=x), x.to(x + 1)):
            assert (moved.device.type, moved.dtype) == ("cuda", torch.bfloat16)
        assert x.to(y, copy=True).device.type == "cpu"

    assert engine.plan(program, world=2, ranks=[0]).classes


@pytest.mark.thorough
@pytest.mark.forks_backward
def test_nothing_remains_after_a_plan():
    """No group, variable or random state of the program remains, also after an error."""

    def failing(device="cpu"):
        PROGRAMS["ddp"](device)
        torch.manual_seed(1)
        raise ValueError("after training")

    before = torch.get_rng_state(), dict(os.environ), torch.get_default_device(), torch.cuda.is_available()
    with pytest.raises(PlanFailed, match=r"ValueError at test_plan_step.py:\d+: after training"):
        engine.plan(failing, world=2, steps=STEPS + 1)
    assert not torch.distributed.is_initialized()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (dict(os.environ), torch.get_default_device(), torch.cuda.is_available())


def test_garbage_of_this_process_is_not_freed_in_the_planned_one(tmp_path):
    """A finalizer of cyclic garbage runs once, here, though the planned one collects."""
    runs = tmp_path / "runs"

    class Cyclic:
        def __init__(self):
            self.me = self

        def __del__(self):
            with runs.open("a") as file:
                file.write("run ")

    def program():
        gc.collect()
        return torch.ones(2) + 1

    gc.disable()
    try:
        Cyclic()
        engine.plan(program, world=2, ranks=[0], device="cpu")
        assert not runs.exists()
    finally:
        gc.enable()
    gc.collect()
    assert runs.read_text() == "run "


def test_a_build_that_cannot_run_backward_in_a_fork_is_named():
    """CUDA builds of torch raise in a fork after a backward; the message says where to plan."""

    def program():
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    with pytest.raises(PlanFailed, match=r"no backward in a fork of a process that ran one\. Plan in a new process\."):
        engine.plan(program, world=2, ranks=[0], device="cpu")


@pytest.mark.thorough
@pytest.mark.forks_backward
def test_an_existing_group_is_left_alone(tmp_path):
    """A program is planned although the process has a group of its own, which remains."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        plan = engine.plan(PROGRAMS["ddp"], world=8, device="cpu")
        assert plan.classes[0].collectives[-1].group_size == 8
        assert torch.distributed.group.WORLD is group
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.forks_backward
def test_a_script_for_torchrun_is_planned_unchanged(tmp_path):
    """A script has torchrun's variables, and ends after the planned steps."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "dist.init_process_group('nccl')\n"
        "local = int(os.environ['LOCAL_RANK'])\n"
        "torch.cuda.set_device(local)\n"
        "model = DDP(nn.Linear(16, 16).cuda(), device_ids=[local])\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))\n"
        "while True:\n"
        "    loss = model(torch.randn(4, 16, device='cuda')).mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    print(loss.item())\n",
        encoding="utf-8",
    )
    plan = engine.plan(script, world=16, arguments=["0.1"], steps=3)
    assert [(c.kind, c.bytes, c.line, c.group) for c in plan.classes[0].collectives] == [
        ("all_reduce", 16 * 17 * 4, 12, "world")
    ]
    assert plan.name == "train.py"


def test_the_given_mesh_answers_the_program():
    """A function with a parameter ``mesh`` is given the mesh."""

    def step(mesh):
        x = torch.ones(4, device="cpu")
        torch.distributed.all_reduce(x, group=mesh["tp"].get_group())
        torch.distributed.all_reduce(x, group=mesh["dp"].get_group())

    plan = engine.plan(step, world=64, mesh="dp=8,tp=8", device="cpu")
    assert [(c.group, c.group_size, c.link) for c in plan.classes[0].collectives] == [
        ("tp", 8, "within a node"),
        ("dp", 8, "between nodes"),
    ]


@pytest.mark.thorough
@pytest.mark.forks_backward
def test_another_mesh_is_compared():
    """A comparison gives peak, bytes and times of both plans."""
    two, four = (engine.plan(PROGRAMS["fsdp"], world=n, device="cpu") for n in (2, 4))
    rows = {name: (before, after) for name, before, after in two.compare(four).rows}
    assert rows["ranks"] == (2, 4)
    assert rows["peak memory, bytes"] == (two.worst.peak_bytes, four.worst.peak_bytes)
    assert "peak memory: " in str(two.compare(four))


@pytest.mark.forks_backward
def test_a_plan_survives_json(tmp_path):
    """A plan is the same after a round trip through JSON."""
    plan = engine.plan(PROGRAMS["ddp"], world=2, device="cpu")
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert "all_reduce" in str(plan)


@pytest.mark.forks_backward
def test_memory_has_categories():
    """Parameters and AdamW's state have their exact bytes at the end."""
    one = engine.plan(PROGRAMS["fsdp"], world=2, device="cpu", steps=3).worst
    by_name = dict(zip(engine.records.plan.MEMORY_CATEGORIES, one.curve[-1].bytes, strict=True))
    assert by_name["parameters"] == 2 * (8 * 8 + 8) * 4 // 2
    assert by_name["optimizer state"] >= 2 * by_name["parameters"]


BAD_CALLS = {
    "one rank": ({"world": 1}, "at least two ranks"),
    "mesh of another size": ({"world": 8, "mesh": "dp=2,tp=2"}, "dp=2 x tp=2 has 4 ranks, but the world has 8"),
    "no mesh": ({"world": 8, "mesh": "dp:2"}, "not a mesh"),
    "zero": ({"world": 8, "mesh": {"dp": 0}}, "positive whole size"),
    "rank": ({"world": 8, "ranks": [8]}, "from 0 to 7"),
    "device": ({"world": 8, "device": "tpu"}, "'cuda' or 'cpu'"),
    "constant": ({"world": 8, "hardware": {"speed": 1}}, "no constant 'speed'"),
    "steps": ({"world": 8, "steps": 0}, "at least one step"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_are_explained(name):
    """An impossible plan is refused in one sentence."""
    arguments, text = BAD_CALLS[name]
    with pytest.raises(BadArgument, match=text):
        engine.plan(PROGRAMS["ddp"], **arguments)


def test_sizes_that_the_mesh_does_not_divide_are_named():
    """A step that fails because of unequal shards names the size and the number of ranks."""
    with pytest.raises(PlanFailed, match=r"training_programs.py:\d+.* 64 ranks do not divide size 8 of a parameter"):
        engine.plan(PROGRAMS["tensor_parallel"], world=64, device="cpu")


def test_a_missing_script_is_explained():
    """A path without a file, and a value that is no program, are refused."""
    with pytest.raises(BadArgument, match="no script"):
        engine.plan("nowhere.py", world=2)
    with pytest.raises(BadArgument, match="not int"):
        engine.plan(3, world=2)


def test_groups_of_a_mesh():
    """The last dimension of a mesh holds neighboring ranks."""
    assert groups_along(5, {"dp": 2, "tp": 4}) == {"tp": [4, 5, 6, 7], "dp": [1, 5]}


def test_streams_overlap_in_the_time_model():
    """A collective on another stream overlaps computation until a stream waits for it."""
    timeline = Timeline()
    timeline.compute(1.0, [])
    assert timeline.communicate(2.0, "g", [7], waits=False) == 1.0
    timeline.compute(0.5, [])
    timeline.compute(1.0, [7])
    assert timeline.default.ready == 4.0
    assert length_outside((1.0, 3.0), merge_intervals(timeline.computed)) == 1.5


def test_collectives_cost_bandwidth_and_latency():
    """Twice the bytes take longer by their transfer alone, and links between nodes are slower."""
    hardware = Hardware()
    one, two = (hardware.collective_time("all_gather", n, 8, crosses_nodes=False) for n in (10**8, 2 * 10**8))
    assert two - one == pytest.approx(10**8 * 7 / 8 / hardware.intra_bandwidth)
    assert hardware.collective_time("all_gather", 10**8, 8, crosses_nodes=True) > one


def test_a_plan_names_an_operator_that_it_does_not_know():
    """A collective without a known kind is left out, and a note says so."""

    def step():
        library = torch.library.Library("_dtensor", "FRAGMENT")
        library.define("rotate_ranks(Tensor x) -> Tensor")
        library.impl("rotate_ranks", torch.clone, "CompositeExplicitAutograd")
        return torch.ops._dtensor.rotate_ranks(torch.ones(4)) + 1

    (found,) = engine.plan(step, world=2, device="cpu", ranks=[0]).classes
    assert found.collectives == ()
    assert found.notes == ("The plan does not know _dtensor.rotate_ranks.default: its time and bytes are left out.",)


@pytest.mark.forks_backward
def test_redistributions_that_no_line_asks_for_are_named() -> None:
    """A collective that DTensor inserts for an operator says so; a called one does not."""

    def step(mesh):
        weight = distribute_tensor(torch.ones(16, 16, device="cuda"), mesh["tp"], [Shard(0)])
        product = weight @ weight.t()
        product.full_tensor()

    plan = engine.plan(step, world=4, mesh="dp=2,tp=2", ranks=[0])
    found = [(c.kind, c.hidden_by) for c in plan.worst.collectives if c.kind == "all_gather"]
    assert found == [("all_gather", "aten.mm"), ("all_gather", "")]
    assert "inserted by DTensor for aten.mm" in str(plan)


@pytest.mark.forks_backward
def test_a_layer_is_sharded_otherwise():
    """A what-if gives one layer another style: the same collectives as a program written so."""

    def step(mesh, styles):
        model = nn.Sequential(nn.Linear(8, 16, device="cuda"), nn.ReLU(), nn.Linear(16, 8, device="cuda"))
        parallelize_module(model, mesh["tp"], styles)
        for _ in range(2):
            model(torch.ones(4, 8, device="cuda")).sum().backward()

    def planned(styles, **what_if):
        plan = engine.plan(step, styles=styles, world=4, mesh="dp=2,tp=2", ranks=[0], **what_if)
        return [(c.kind, c.bytes, c.phase) for c in plan.worst.collectives], plan.worst.peak_bytes

    both = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    assert planned(both, shard={"0": None, "2": None}) == planned({})
    assert planned({"0": ColwiseParallel()}, shard={"2": RowwiseParallel()}) == planned(both)
    assert planned(both) != planned({})


def test_a_layer_that_is_not_there_is_named():
    """A what-if about no layer, or with a wrong style, says which names there are."""

    def step(mesh):
        parallelize_module(nn.Sequential(nn.Linear(8, 8)), mesh, {"0": ColwiseParallel()})

    with pytest.raises(PlanFailed, match="no layer 'up'; the layers of its parallelize_module are 0"):
        engine.plan(step, world=2, shard={"up": RowwiseParallel()})
    with pytest.raises(BadArgument, match="must be a parallel style such as ColwiseParallel"):
        engine.plan(step, world=2, shard={"0": 1})


def test_a_rank_reads_the_chunks_that_torch_makes():
    """Chunks made when read are those of ``torch.chunk``, and empty where it makes none."""
    for size, count, dim in ((7, 3, 0), (3, 8, 0), (8, 8, 0), (4, 3, 1), (1, 1, 0)):
        whole = torch.arange(size * 4.0).reshape(size, 4)
        real = list(torch.chunk(whole, count, dim))
        real += [whole.new_empty(0)] * (count - len(real))
        made = list(Chunks(whole, count, dim))
        assert [(t.tolist(), t.stride(), t.storage_offset()) for t in made] == [
            (t.tolist(), t.stride(), t.storage_offset()) for t in real
        ]
