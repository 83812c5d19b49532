"""Parts of torch that are loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import IfMissing, declare, declare_class, declare_module, load_lazily

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
        declare_module(
            "torch.distributed.tensor.experimental:_func_map",
            "Module of ``local_map``.",
            members=("local_map", "_local_map_wrapped"),
            alias="local_map_module",
        ),
    ),
    *IfMissing("traced code that calls numpy breaks the graph").entries(
        declare_module("torch:_numpy", "numpy's functions on tensors.", alias="torch_numpy"),
    ),
    *IfMissing("distributed steps cannot be planned").entries(
        declare_class("torch._C._distributed_c10d:Work", "Handle of a collective.", members=("wait", "boxed")),
        declare(
            "torch._C._distributed_c10d:_create_work_from_future",
            "Makes the handle of a collective that is not executed.",
        ),
        declare_class(
            "torch._C._distributed_c10d:ProcessGroup",
            "Group that a collective names.",
            members=("unbox", "_get_backend", "_device_types"),
        ),
        declare_class(
            "torch._C._distributed_c10d:Reducer",
            "Gradient buckets of DistributedDataParallel.",
            members=("_rebuild_buckets",),
            alias="ProcessGroupReducer",
        ),
        declare_module(
            "torch.distributed:distributed_c10d",
            "State of the process groups.",
            members=("_world", "_World", "_resolve_process_group", "_group_count", "_get_default_store"),
            alias="c10d",
        ),
        declare_module(
            "torch.distributed.fsdp._fully_shard:_fsdp_common",
            "Cuts a parameter into the shards of all ranks.",
            members=("_chunk_with_empty",),
            alias="fsdp_common",
        ),
        declare_module(
            "torch.distributed:utils",
            "Check of the parameters' shapes across processes.",
            members=("_verify_param_shape_across_processes",),
            alias="distributed_utils",
        ),
        declare_class(
            "torch.testing._internal.distributed.fake_pg:FakeStore", "Store of a process group without processes."
        ),
        declare_class(
            "torch.distributed.tensor._dispatch:OpDispatcher",
            "Redistributes the inputs of an operator on DTensors.",
            members=("redistribute_local_args",),
        ),
        declare_class(
            "torch.distributed.tensor._sharding_prop:ShardingPropagator",
            "Propagates placements; runs operators on tensors of global sizes.",
            members=("_propagate_tensor_meta_non_cached",),
        ),
    ),
    *IfMissing("a part of a mesh is drawn alone").entries(
        declare_class(
            "torch.distributed.device_mesh:DeviceMesh",
            "Mesh of ranks; the whole one of a part is drawn.",
            members=("_get_root_mesh",),
        ),
    ),
)

if not TYPE_CHECKING:
    load_lazily(globals(), ENTRIES)
