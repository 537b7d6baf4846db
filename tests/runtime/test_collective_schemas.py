"""Every registered collective is classified: what it writes, and that it never runs again."""

import pytest
import torch.distributed as dist

import remint._torch

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


# What each op writes, by the definition of the collective. The schemas do not say.
WRITES = {
    "c10d::_allgather_base_": {"output_tensor"},
    "c10d::_reduce_scatter_base_": {"output_tensor"},
    "c10d::allgather_": {"output_tensors"},
    "c10d::allgather_coalesced_": {"output_lists"},
    "c10d::allgather_into_tensor_coalesced_": {"outputs"},
    "c10d::allreduce_": {"tensors"},
    "c10d::allreduce_coalesced_": {"tensors"},
    "c10d::alltoall_": {"output_tensors"},
    "c10d::alltoall_base_": {"output"},
    "c10d::barrier": set(),
    "c10d::broadcast_": {"tensors"},
    "c10d::check_for_nan": set(),
    "c10d::gather_": {"output_tensors"},
    "c10d::monitored_barrier_": set(),
    "c10d::recv_": {"tensors"},
    "c10d::recv_any_source_": {"tensors"},
    "c10d::reduce_": {"tensors"},
    "c10d::reduce_scatter_": {"output_tensors"},
    "c10d::reduce_scatter_tensor_coalesced_": {"outputs"},
    "c10d::scatter_": {"output_tensors"},
    "c10d::send": set(),
    "_c10d_functional::_wrap_tensor_autograd": set(),
    "_c10d_functional::all_gather_into_tensor": set(),
    "_c10d_functional::all_gather_into_tensor_coalesced": set(),
    "_c10d_functional::all_gather_into_tensor_out": {"out"},
    "_c10d_functional::all_reduce": set(),
    "_c10d_functional::all_reduce_": {"input"},
    "_c10d_functional::all_reduce_coalesced": set(),
    "_c10d_functional::all_reduce_coalesced_": {"inputs"},
    "_c10d_functional::all_to_all_single": set(),
    "_c10d_functional::batch_p2p_ops": {"tensors"},
    "_c10d_functional::broadcast": set(),
    "_c10d_functional::broadcast_": {"input"},
    "_c10d_functional::irecv": {"tensor"},
    "_c10d_functional::isend": set(),
    "_c10d_functional::reduce_scatter_tensor": set(),
    "_c10d_functional::reduce_scatter_tensor_coalesced": set(),
    "_c10d_functional::reduce_scatter_tensor_out": {"out"},
    "_c10d_functional::wait_tensor": set(),
    "_c10d_functional_autograd::all_gather_into_tensor": set(),
    "_c10d_functional_autograd::all_to_all_single": set(),
    "_c10d_functional_autograd::reduce_scatter_tensor": set(),
    "_dtensor::mesh_get_process_group": set(),
    "_dtensor::shard_dim_alltoall": set(),
}
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
# They talk to nobody: running them again is right, and so is not running them again.
LOCAL = {
    "c10d::check_for_nan", "_c10d_functional::_wrap_tensor_autograd", "_c10d_functional::wait_tensor",
    "_dtensor::mesh_get_process_group", "symm_mem::_async_input_mm", "symm_mem::_rendezvous",
    "symm_mem::get_remote_tensors", "symm_mem::memset32_", "symm_mem::stream_write_value32_",
}  # fmt: skip
# Symmetric memory is written by peers as well. This op copies its input there though its schema does not say so.
COPIES = {
    "symm_mem::one_shot_all_reduce_copy": {"symm_buffer"},
    "symm_mem::one_shot_all_reduce_copy_out": {"symm_buffer"},
}


def collective_schemas():
    """All registered ops that have a process group argument, or are in a namespace of collectives."""
    import torch.distributed._functional_collectives
    import torch.distributed._symmetric_memory
    import torch.distributed.tensor

    return {
        (schema.name, schema.overload_name): schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.split("::")[0] in NAMESPACES or any("ProcessGroup" in str(a.type) for a in schema.arguments)
    }


def test_every_collective_is_classified():
    schemas = collective_schemas()
    assert len(schemas) >= 80
    problems = []
    for (name, overload), schema in sorted(schemas.items()):
        facts = remint._torch.operator_facts(name, overload)
        found = set(facts["writes"])
        annotated = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        if name.startswith("symm_mem::"):
            expected = annotated | COPIES.get(name, set())
        elif name in WRITES:
            expected = WRITES[name]
        else:
            problems.append(f"{schema} is not in the table of this test")
            continue
        if found - {"sparse_indices"} != expected:
            problems.append(f"{name} writes {sorted(expected)}, not {sorted(found)}")
        if not facts["collective"] and name not in LOCAL:
            problems.append(f"{name} is a collective")
        if facts["view"] and name not in LOCAL:
            problems.append(f"{name} is no view")
    assert not problems, "\n".join(problems)


def test_ordinary_ops_are_no_collectives():
    for name, overload, writes in (
        ("aten::add", "Tensor", []),
        ("aten::add_", "Tensor", ["self"]),
        ("aten::mul", "out", ["out"]),
        ("aten::view", "", []),
        ("aten::native_dropout", "", []),
    ):
        facts = remint._torch.operator_facts(name, overload)
        assert not facts["collective"], name
        assert not facts["pins_arguments"], name
        assert facts["writes"] == writes, name
        assert facts["view"] == (name == "aten::view"), name
        assert facts["seeded"] == (name == "aten::native_dropout"), name
