"""Parts of torch that are loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Kind, load_lazily

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Work
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._dispatch import OpDispatcher
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.distributed.tensor.experimental import _func_map as local_map_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ProcessGroupReducer: Any
    c10d: Any
    create_work_from_future: Any
    distributed_utils: Any
    fsdp_common: Any
    torch_numpy: Any

WITHOUT_PLANS = "distributed steps cannot be planned"
ENTRIES = (
    Entry(
        "torch.distributed.tensor.experimental:_func_map",
        Kind.MODULE,
        "Module of ``local_map``.",
        without="traced code that calls it breaks the graph",
        members=("local_map", "_local_map_wrapped"),
        alias="local_map_module",
    ),
    Entry(
        "torch:_numpy",
        Kind.MODULE,
        "numpy's functions on tensors.",
        without="traced code that calls numpy breaks the graph",
        alias="torch_numpy",
    ),
    Entry(
        "torch._C._distributed_c10d:Work",
        Kind.CLASS,
        "Handle of a collective.",
        without=WITHOUT_PLANS,
        members=("wait", "boxed"),
    ),
    Entry(
        "torch._C._distributed_c10d:_create_work_from_future",
        Kind.FUNCTION,
        "Makes the handle of a collective that is not executed.",
        without=WITHOUT_PLANS,
    ),
    Entry(
        "torch._C._distributed_c10d:ProcessGroup",
        Kind.CLASS,
        "Group that a collective names.",
        without=WITHOUT_PLANS,
        members=("unbox", "_get_backend", "_device_types"),
    ),
    Entry(
        "torch._C._distributed_c10d:Reducer",
        Kind.CLASS,
        "Gradient buckets of DistributedDataParallel.",
        without=WITHOUT_PLANS,
        members=("_rebuild_buckets",),
        alias="ProcessGroupReducer",
    ),
    Entry(
        "torch.distributed:distributed_c10d",
        Kind.MODULE,
        "State of the process groups.",
        without=WITHOUT_PLANS,
        members=("_world", "_World", "_resolve_process_group", "_group_count", "_get_default_store"),
        alias="c10d",
    ),
    Entry(
        "torch.distributed.device_mesh:DeviceMesh",
        Kind.CLASS,
        "Mesh of ranks; the whole one of a part is drawn.",
        without="a part of a mesh is drawn alone",
        members=("_get_root_mesh",),
    ),
    Entry(
        "torch.distributed.fsdp._fully_shard:_fsdp_common",
        Kind.MODULE,
        "Cuts a parameter into the shards of all ranks.",
        without=WITHOUT_PLANS,
        members=("_chunk_with_empty",),
        alias="fsdp_common",
    ),
    Entry(
        "torch.distributed:utils",
        Kind.MODULE,
        "Check of the parameters' shapes across processes.",
        without=WITHOUT_PLANS,
        members=("_verify_param_shape_across_processes",),
        alias="distributed_utils",
    ),
    Entry(
        "torch.testing._internal.distributed.fake_pg:FakeStore",
        Kind.CLASS,
        "Store of a process group without processes.",
        without=WITHOUT_PLANS,
    ),
    Entry(
        "torch.distributed.tensor._dispatch:OpDispatcher",
        Kind.CLASS,
        "Redistributes the inputs of an operator on DTensors.",
        without=WITHOUT_PLANS,
        members=("redistribute_local_args",),
    ),
    Entry(
        "torch.distributed.tensor._sharding_prop:ShardingPropagator",
        Kind.CLASS,
        "Propagates placements; runs operators on tensors of global sizes.",
        without=WITHOUT_PLANS,
        members=("_propagate_tensor_meta_non_cached",),
    ),
)

if not TYPE_CHECKING:
    load_lazily(globals(), ENTRIES)
