"""Policies: how the samples of a minibatch become microbatches on ranks. One policy a file; this is the registry.

    local-sort   local_sort.py
    lb-micro     lb_micro.py
    lb-mini      lb_mini.py
    verl-native  verl_native.py
    lockstep     lockstep.py
    independent  independent.py
    dynamic      dynamic.py

`plan_minibatch` is the entrance for callers: it deals with samples over the cap, then asks the policy.
"""

from __future__ import annotations

from odcsim.policies.base import PlanFunction, PlanTask, Policy
from odcsim.policies.dynamic import DYNAMIC
from odcsim.policies.independent import INDEPENDENT
from odcsim.policies.lb_micro import LB_MICRO
from odcsim.policies.lb_mini import LB_MINI
from odcsim.policies.local_sort import LOCAL_SORT
from odcsim.policies.lockstep import LOCKSTEP
from odcsim.policies.oversize import MinibatchPlan, Oversize, OversizeResult, apply_oversize, plan_minibatch
from odcsim.policies.verl_native import VERL_NATIVE
from odcsim.suggest import unknown_name

__all__ = [
    "MinibatchPlan",
    "Oversize",
    "OversizeResult",
    "PlanFunction",
    "PlanTask",
    "Policy",
    "apply_oversize",
    "find_policy",
    "plan_minibatch",
    "policy_names",
]

_POLICIES = {
    policy.name: policy for policy in (LOCAL_SORT, LB_MICRO, LB_MINI, VERL_NATIVE, LOCKSTEP, INDEPENDENT, DYNAMIC)
}


def policy_names() -> tuple[str, ...]:
    """The name of every policy, simplest first."""
    return tuple(_POLICIES)


def find_policy(name: str, *, file: object | None = None, key: str | None = None) -> Policy:
    """The policy of that name.

    Args:
        name: as a scenario writes it.
        file: the file that holds the name, if any.
        key: the key that holds the name, if any.

    Raises:
        UnknownNameError: there is none; the text offers the nearest one and lists all.
    """
    policy = _POLICIES.get(name)
    if policy is None:
        raise unknown_name("policy", name, policy_names(), file=file, key=key)
    return policy
