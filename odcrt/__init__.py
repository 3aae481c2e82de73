"""odcrt: On-Demand Communication on PyTorch FSDP2.

    odc = odcrt.on_demand(model)              # after fully_shard, on all ranks
    for minibatch in loader:
        with odc.minibatch():                 # publish on enter, settle on exit
            for microbatch in minibatch:      # as many as this rank has
                loss(model(...)).backward()
        optimizer.step()
        optimizer.zero_grad()
    odc.close()

Names are imported when they are first used: `import odcrt` needs no torch, what it exports does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcrt.fsdp.on_demand import OnDemand, on_demand
    from odcrt.fsdp.per_unit import PerUnit, per_unit

__all__ = ["OnDemand", "PerUnit", "on_demand", "per_unit"]

_HOMES = {
    "OnDemand": "odcrt.fsdp.on_demand",
    "PerUnit": "odcrt.fsdp.per_unit",
    "on_demand": "odcrt.fsdp.on_demand",
    "per_unit": "odcrt.fsdp.per_unit",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the exported names
    if name not in _HOMES:
        raise AttributeError(f"module 'odcrt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
