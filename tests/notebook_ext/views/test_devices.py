"""Devices view: the mesh, placements, and redistributions that no line asks for."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import engine
from engine.records.findings import find_problems
from engine.records.ranks.collectives import recorded_mesh
from engine.torch_private.lazily_loaded import FakeStore
from notebook_ext.views.devices import mesh_caption, mesh_image
from notebook_ext.views.explorer_parts import part


def gathers(weight: DTensor) -> torch.Tensor:
    """A product that gathers a matrix, and a redistribution that a line asks for."""
    product = weight @ weight.t()
    return product.redistribute(placements=[Replicate()]).to_local().sum()


def normalizes(weight: DTensor) -> torch.Tensor:
    """A softmax that gathers a matrix, whose gradient then is whole on each rank."""
    return weight.softmax(0).square().sum().full_tensor()


def recorded(fn: Callable[[DTensor], torch.Tensor]) -> engine.Session:
    """Record a function as rank 0 of a mesh of two by two ranks, none of which is a process."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with engine.record() as session:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            weight = distribute_tensor(torch.ones(16, 16), mesh["tp"], [Shard(0)])
            engine.compile(fn, backend="aot_eager")(weight.requires_grad_()).backward()
    finally:
        dist.destroy_process_group()
    return session


@pytest.fixture(scope="module")
def session() -> engine.Session:
    """Record a product of a matrix that is cut."""
    return recorded(gathers)


def test_graphs_without_known_collectives_are_named() -> None:
    """A graph of DTensors that runs under eager autograd says so, with the sizes at fault."""
    said = part(recorded(normalizes), "devices")["outcome"]
    wanted = "the gradient of weight, a DTensor, has inner sizes [[16, 16]], not [[8, 16]]"
    assert said == f"Collectives of 1 graph are not known, because {wanted}."


def test_hidden_redistributions_are_flagged(session: engine.Session) -> None:
    """The gather that DTensor inserts is named with line, bytes, group and placements."""
    view = part(session, "devices")
    sections = {s["title"].partition(":")[0]: s["rows"] for s in view["sections"]}
    picture = base64.b64decode(view["sections"][0]["image"].partition(",")[2]).decode()
    assert (picture.count("<rect"), picture.count('stroke="')) == (4, 3)
    assert sections["Mesh"][0]["text"] == "Rows: dp=2; columns: tp=2."
    (weight, _) = sections["What this rank holds"]
    assert weight["text"] == "f32[16, 16] tp=2: S(0); f32[8, 16] here, 512 B of 1.02 kB"
    hidden = sections["Hidden redistributions"]
    assert {row["code"] for row in hidden} == {"product = weight @ weight.t()"}
    assert hidden[0]["name"].startswith("all_gather f32 of 1.02 kB over tp (")
    assert "weight f32[16, 16] tp=2: S(0), t f32[16, 16] tp=2: S(1)" in hidden[0]["text"]
    asked = [r for r in sections["Collectives that lines ask for"] if "redistribute" in r["code"]]
    assert asked[0]["text"] == "from matmul f32[16, 16] tp=2: S(0) to f32[16, 16] tp=2: R"
    assert "hidden-redistribution" in {f.kind for f in find_problems(session)}
    nodes = part(session, f"graph|{session.compilations[0].id}|fx")
    placed = dict(zip(nodes["nodes"]["name"], (nodes["strings"][i] for i in nodes["nodes"]["placed"]), strict=True))
    assert (placed["t"], placed["redistribute"], placed["sum_1"]) == ("tp=2: S(1)", "tp=2: R", "")


def test_equal_ranks_of_a_mesh_are_one_group(session: engine.Session, tmp_path: Path) -> None:
    """Names of groups and the chunk that a rank takes are no difference."""
    text = session.save(tmp_path / "rank0.json").read_text()
    (group,) = {name for name, dim in dict(recorded_mesh(session.compilations).groups).items() if dim == "tp"}
    taken = re.search(r"getitem\w* = split\w*\[0\]", text)
    assert taken is not None
    other = text.replace(f"'{group}')", "'99')").replace(taken[0], taken[0].replace("[0]", "[1]"))
    data = json.loads(other)
    for graph in (g for c in data["compilations"] for g in c["graphs"] if "mesh" in g):
        graph["mesh"] |= {"rank": 3, "groups": [["99", "tp"]]}
    (tmp_path / "rank3.json").write_text(json.dumps(data))
    merged = engine.load_ranks(tmp_path).session
    assert merged.ranks is not None
    assert [g.ranks for g in merged.ranks.groups] == [(0, 3)]
    assert not any("several runs" in p for p in merged.ranks.problems)
    rows = part(merged, "devices")["sections"][0]["rows"]
    assert [r["text"] for r in rows[1:]] == ["compiled the same", "2 outlined: no recording."]


def test_meshes_of_any_size_are_drawn() -> None:
    """A mesh of three dimensions has a row for each pair; 1,024 ranks fit into a page."""
    assert mesh_caption(("pp", "dp", "tp"), (2, 2, 4), 16) == "Rows: pp=2 x dp=2; columns: tp=4."
    image = mesh_image((128, 8), range(1024), dict.fromkeys(range(1024), 0))
    assert base64.b64decode(image.partition(",")[2]).count(b"<rect") == 1024
    assert b"<text" not in base64.b64decode(image.partition(",")[2])
    assert "The first 4,096 of 8,192 ranks" in mesh_caption(("world",), (8192,), 8192)
