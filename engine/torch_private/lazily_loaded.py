"""Parts of torch that are loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import IfMissing, Kind, declare, load_lazily

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

ENTRIES = (
    *IfMissing("traced code that calls it breaks the graph").entries(
        declare(
            "torch.distributed.tensor.experimental:_func_map",
            "Module of ``local_map``.",
            kind=Kind.MODULE,
            members=("local_map", "_local_map_wrapped"),
            alias="local_map_module",
        ),
    ),
    *IfMissing("traced code that calls numpy breaks the graph").entries(
        declare("torch:_numpy", "numpy's functions on tensors.", kind=Kind.MODULE, alias="torch_numpy"),
    ),
    *IfMissing("distributed steps cannot be planned").entries(
        declare(
            "torch._C._distributed_c10d:Work", "Handle of a collective.", kind=Kind.CLASS, members=("wait", "boxed")
        ),
        declare(
            "torch._C._distributed_c10d:_create_work_from_future",
            "Makes the handle of a collective that is not executed.",
        ),
        declare(
            "torch._C._distributed_c10d:ProcessGroup",
            "Group that a collective names.",
            kind=Kind.CLASS,
            members=("unbox", "_get_backend", "_device_types"),
        ),
        declare(
            "torch._C._distributed_c10d:Reducer",
            "Gradient buckets of DistributedDataParallel.",
            kind=Kind.CLASS,
            members=("_rebuild_buckets",),
            alias="ProcessGroupReducer",
        ),
        declare(
            "torch.distributed:distributed_c10d",
            "State of the process groups.",
            kind=Kind.MODULE,
            members=("_world", "_World", "_resolve_process_group", "_group_count", "_get_default_store"),
            alias="c10d",
        ),
        declare(
            "torch.distributed.fsdp._fully_shard:_fsdp_common",
            "Cuts a parameter into the shards of all ranks.",
            kind=Kind.MODULE,
            members=("_chunk_with_empty",),
            alias="fsdp_common",
        ),
        declare(
            "torch.distributed:utils",
            "Check of the parameters' shapes across processes.",
            kind=Kind.MODULE,
            members=("_verify_param_shape_across_processes",),
            alias="distributed_utils",
        ),
        declare(
            "torch.testing._internal.distributed.fake_pg:FakeStore",
            "Store of a process group without processes.",
            kind=Kind.CLASS,
        ),
        declare(
            "torch.distributed.tensor._dispatch:OpDispatcher",
            "Redistributes the inputs of an operator on DTensors.",
            kind=Kind.CLASS,
            members=("redistribute_local_args",),
        ),
        declare(
            "torch.distributed.tensor._sharding_prop:ShardingPropagator",
            "Propagates placements; runs operators on tensors of global sizes.",
            kind=Kind.CLASS,
            members=("_propagate_tensor_meta_non_cached",),
        ),
    ),
    *IfMissing("a part of a mesh is drawn alone").entries(
        declare(
            "torch.distributed.device_mesh:DeviceMesh",
            "Mesh of ranks; the whole one of a part is drawn.",
            kind=Kind.CLASS,
            members=("_get_root_mesh",),
        ),
    ),
)

if not TYPE_CHECKING:
    load_lazily(globals(), ENTRIES)
