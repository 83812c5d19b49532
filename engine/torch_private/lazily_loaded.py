"""Parts of torch that are loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_lazily_into

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Work
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._dispatch import OpDispatcher
    from torch.distributed.tensor._op_schema import OpSchema
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.distributed.tensor.experimental import _func_map as local_map_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_lazily_into(globals())("""
If missing, traced code that calls it breaks the graph:
    module torch.distributed.tensor.experimental:_func_map alias=local_map_module members=local_map,_local_map_wrapped
        -- Module of ``local_map``.
If missing, operators on DTensors that take a number computed from a tensor break the graph:
    class torch.distributed.tensor._op_schema:OpSchema members=__hash__ -- Call of an operator on DTensors.
    function torch._C:_clear_DTensor_sharding_propagator_cache () alias=clear_placement_cache
        -- Clears the thread's cache of placements.
If missing, traced code that calls numpy breaks the graph:
    module torch:_numpy alias=torch_numpy -- numpy's functions on tensors.
If missing, distributed steps cannot be planned:
    class torch._C._distributed_c10d:Work members=wait,boxed -- Handle of a collective.
    function torch._C._distributed_c10d:_create_work_from_future
        -- Makes the handle of a collective that is not executed.
    class torch._C._distributed_c10d:ProcessGroup members=unbox,_get_backend,_device_types
        -- Group that a collective names.
    class torch._C._distributed_c10d:Reducer alias=ProcessGroupReducer members=_rebuild_buckets
        -- Gradient buckets of DistributedDataParallel.
    module torch.distributed:distributed_c10d alias=c10d members=_world,_World,_resolve_process_group,_group_count,
        _get_default_store -- State of the process groups.
    module torch.distributed.fsdp._fully_shard:_fsdp_common alias=fsdp_common members=_chunk_with_empty
        -- Cuts a parameter into the shards of all ranks.
    module torch.distributed:utils alias=distributed_utils members=_verify_param_shape_across_processes
        -- Check of the parameters' shapes across processes.
    class torch.testing._internal.distributed.fake_pg:FakeStore -- Store of a process group without processes.
    class torch.distributed.tensor._dispatch:OpDispatcher members=redistribute_local_args
        -- Redistributes the inputs of an operator on DTensors.
    class torch.distributed.tensor._sharding_prop:ShardingPropagator
        members=_propagate_tensor_meta_non_cached,propagate_op_sharding_non_cached
        -- Propagates placements; runs operators on tensors of global sizes.
If missing, a part of a mesh is drawn alone:
    class torch.distributed.device_mesh:DeviceMesh members=_get_root_mesh
        -- Mesh of ranks; the whole one of a part is drawn.
""")
