"""Training steps on several processes, to plan and to run for real."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 3


def mlp(device="cpu", width=8):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8)).to(device)


def train(model, device="cpu", steps=STEPS, **options):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(steps):
        gc.collect()
        loss = model(torch.randn(2, 8, device=device)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def start(device):
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device == "cuda" else "gloo")


def ddp(device="cpu"):
    start(device)
    train(nn.parallel.DistributedDataParallel(mlp(device)), device)


def ddp_views(device="cpu"):
    start(device)
    train(nn.parallel.DistributedDataParallel(mlp(device), gradient_as_bucket_view=True), device)


def fsdp(device="cpu"):
    start(device)
    model = mlp(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    train(fully_shard(model, mesh=mesh), device)


def fsdp_uneven(device="cpu"):
    start(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    train(fully_shard(mlp(device, width=7), mesh=mesh), device)


def tensor_parallel(device="cpu"):
    start(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("tp",))
    train(parallelize_module(mlp(device), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), device)


def checkpointed(device="cpu"):
    start(device)
    model = mlp(device)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.model, x, use_reentrant=False)

    train(nn.parallel.DistributedDataParallel(Checkpointed()), device)


def plain_collectives(device="cpu"):
    start(device)
    x = torch.ones(6, device=device)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    out = torch.empty(6 * dist.get_world_size(), device=device)
    dist.all_gather_into_tensor(out, x)
    dist.broadcast(x, 0)
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    dist.barrier()


PROGRAMS = {
    f.__name__: f
    for f in (ddp, ddp_views, fsdp, fsdp_uneven, tensor_parallel, checkpointed, plain_collectives)
}  # fmt: skip
