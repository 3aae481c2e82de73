"""FSDP2 as odcrt sees it: the one place that imports its interfaces for custom communication, and lists a model's
units.

`FSDPModule.set_custom_all_gather` and `set_custom_reduce_scatter` are public (torch 2.9 and later). The interfaces that
they take live in a private module; where a torch has moved them, the import fails here, with a text that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from odcsim.errors import InputError, RunError

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
except ImportError as error:  # pragma: no cover - another torch
    raise RunError(
        f"torch {torch.__version__} has no FSDP2 interfaces for custom communication where odcrt looks for them "
        "(torch.distributed.fsdp._fully_shard); odcrt is written for torch 2.13"
    ) from error

__all__ = [
    "AllGather",
    "DefaultAllGather",
    "DefaultReduceScatter",
    "ReduceScatter",
    "Unit",
    "check_group",
    "drop_gathered",
    "groups_of",
    "list_units",
    "reduce_dtype_of",
    "refuse_gradient_hooks",
    "require_host_memory",
    "restore_default_communication",
    "scale_of_reduction",
]


@dataclass(frozen=True, eq=False)
class Unit:
    """One FSDP unit: a `fully_shard`ed module with the parameters that it communicates together.

    Attributes:
        number: 0 for the root, then in the order of the model.
        name: of its module, as `named_modules` has it; "root" for the root.
        module: the module.
        parameters: sharded parameters in the order in which FSDP2 lays them out.
    """

    number: int
    name: str
    module: FSDPModule
    parameters: tuple[nn.Parameter, ...]


def list_units(model: nn.Module) -> list[Unit]:
    """The FSDP units of a model that have parameters, the root first. What is gathered of them is dropped.

    Raises:
        InputError: the model is not `fully_shard`ed, or in a way that on-demand communication does not serve.
    """
    if not isinstance(model, FSDPModule):
        raise InputError("the model is not FSDP2's: call fully_shard on its blocks, and then on the model itself")
    units: list[Unit] = []
    grouped: set[Any] = set()
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule) and module not in grouped:
            _drop_gathered(module)
            group = _modules_of_unit(module)
            grouped.update(group)
            parameters = tuple(_own_parameters(group))
            if parameters:
                units.append(Unit(0 if module is model else len(units), name or "root", module, parameters))
    if not units:
        raise InputError("the model has no parameters")
    if units[0].module is not model:
        # A root without parameters of its own has no communication; blocks still count from 1.
        units = [Unit(position + 1, unit.name, unit.module, unit.parameters) for position, unit in enumerate(units)]
    for unit in units:
        for parameter in unit.parameters:
            _check_parameter(unit, parameter)
    meshes = {
        parameter.device_mesh for unit in units for parameter in unit.parameters if isinstance(parameter, DTensor)
    }
    if len(meshes) > 1:
        raise InputError(
            f"the model's parameters are sharded over {len(meshes)} meshes; on-demand communication takes one"
        )
    return units


def _modules_of_unit(module: FSDPModule) -> tuple[Any, ...]:
    """The modules that `fully_shard` made one unit: a list of them may have been passed to it."""
    modules = getattr(_state_of(module), "_modules", None)
    return tuple(modules) if modules else (module,)


def _own_parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Parameters that FSDP2 communicates together: the modules' own and their descendants', up to the next unit.

    FSDP2 lists modules depth first, children before their parent, each once; and a shared parameter once.
    """
    found: dict[int, nn.Parameter] = {}
    visited: set[nn.Module] = set()

    def visit(current: nn.Module) -> None:
        visited.add(current)
        for child in current.children():
            if child not in visited and (child in modules or not isinstance(child, FSDPModule)):
                visit(child)
        for parameter in current.parameters(recurse=False):
            found.setdefault(id(parameter), parameter)

    for module in modules:
        if module not in visited:
            visit(module)
    return list(found.values())


def _check_parameter(unit: Unit, parameter: nn.Parameter) -> None:
    if not isinstance(parameter, DTensor):
        raise InputError(f"unit {unit.name} has a parameter that is not sharded; leave none out of fully_shard")
    if parameter.device_mesh.ndim != 1 or parameter.placements != (Shard(0),):
        raise InputError(
            f"unit {unit.name} has a parameter with placements {parameter.placements} on a mesh of "
            f"{parameter.device_mesh.ndim} dimensions; on-demand communication takes Shard(0) on a 1-D mesh (no "
            "HSDP, no tensor parallelism)"
        )


def refuse_gradient_hooks(units: Sequence[Unit]) -> None:
    """Check that nobody waits for gradients in backward: what FSDP2 has there is not the gradient yet.

    Raises:
        InputError: a unit has such a hook.
    """
    for unit in units:
        for parameter in unit.parameters:
            if getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise InputError(
                    f"unit {unit.name} has a parameter with a post-accumulate-grad hook; under on-demand communication "
                    "gradients are there after minibatch(), not in backward"
                )
        for group in getattr(_state_of(unit.module), "_fsdp_param_groups", ()):
            if getattr(group, "_all_reduce_hook", None) is not None:
                raise InputError(
                    f"unit {unit.name} has an all-reduce hook, for which on-demand communication has no place"
                )


def check_group(units: Sequence[Unit], group: dist.ProcessGroup | None) -> None:
    """Check that a model is sharded over the very ranks of a group, in their order.

    Raises:
        InputError: over others, or in another order.
    """
    parameter = units[0].parameters[0]
    assert isinstance(parameter, DTensor)
    mesh_group = parameter.device_mesh.get_group()
    sharded_over, asked = (dist.get_process_group_ranks(found or dist.group.WORLD) for found in (mesh_group, group))
    if sharded_over != asked or dist.get_rank(mesh_group) != dist.get_rank(group):
        raise InputError(
            f"the model is sharded over ranks {sharded_over}, and communication is asked for among ranks {asked}; "
            "pass the group of its mesh as group="
        )


def groups_of(units: Sequence[Unit]) -> list[dist.ProcessGroup]:
    """The process groups that a model's ranks are likely to use: the default one, and the one it is sharded over."""
    parameter = units[0].parameters[0]
    assert isinstance(parameter, DTensor)
    world = dist.group.WORLD
    return [parameter.device_mesh.get_group(), *([world] if world is not None else [])]


def require_host_memory(units: Sequence[Unit]) -> None:
    """Check that a model lies in the host's memory.

    Raises:
        InputError: it does not.
    """
    for unit in units:
        for parameter in unit.parameters:
            if parameter.device.type != "cpu":
                raise InputError(
                    f"unit {unit.name} has a parameter on device {parameter.device.type}; this transport serves models "
                    "on the CPU"
                )


def drop_gathered(unit: Unit) -> None:
    """Have FSDP2 gather a unit anew when it is used next.

    Parameters may have stayed gathered after an evaluation, and a gather ahead may wait for a use that never came.
    """
    _drop_gathered(unit.module)


def _drop_gathered(module: FSDPModule) -> None:
    module.reshard()
    for group in getattr(_state_of(module), "_fsdp_param_groups", ()):
        if getattr(group, "_all_gather_result", None) is not None:
            group._all_gather_result = None  # noqa: SLF001 - FSDP2 does so itself after a backward, and there alone


def restore_default_communication(unit: Unit) -> None:
    """Let FSDP2 use its own collectives again."""
    unit.module.set_custom_all_gather(DefaultAllGather())
    unit.module.set_custom_reduce_scatter(DefaultReduceScatter())


def scale_of_reduction(op: dist.ReduceOp | dist.ReduceOp.RedOpType, world_size: int) -> float:
    """What FSDP2 asks a reduction to multiply the sum over ranks by."""
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.AVG:
        return 1.0 / world_size
    factor = getattr(op, "factor", None)
    if factor is None:
        raise RunError(f"FSDP2 asks for a reduction that on-demand communication does not know: {op}")
    return float(factor)


def reduce_dtype_of(unit: Unit, *, gathered: torch.dtype) -> torch.dtype:
    """The type in which FSDP2 reduces a unit's gradients.

    FSDP2 keeps its mixed-precision policy to itself; where this torch hides it elsewhere, gradients accumulate in fp32,
    which holds what any type does.
    """
    policy = getattr(_state_of(unit.module), "_mp_policy", None)
    if policy is None:  # pragma: no cover - another torch
        return torch.float32
    reduced: torch.dtype = policy.reduce_dtype or gathered
    return reduced


def _state_of(module: FSDPModule) -> Any:  # noqa: ANN401 - a private class
    """What FSDP2 knows of a unit. Private to it, and there is no public way to ask; None where a torch hides it."""
    get_state = getattr(module, "_get_fsdp_state", None)
    return None if get_state is None else get_state()
