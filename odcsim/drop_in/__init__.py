"""The balancing of this project in other stacks: plain functions over lists of lengths.

    plans.py     plan_lengths: a whole plan from a list of lengths
    verl.py      the shapes of verl's balancing (and of slime's and miles')
    trl.py       bins of whole samples, as TRL packs a data set
    costs.py     the ways to say what a microbatch costs
    few_bins.py  few bins under a cap
    inputs.py    checks of what callers pass in

Nothing here imports torch or any of those stacks, and nothing communicates: the same input gives the same answer on
every rank, so each computes everybody's plan by itself. A batch sampler for PyTorch's loader is `odcrt.data.sampler`,
which needs no torch either.
"""

from __future__ import annotations

from odcsim.drop_in.costs import DEFAULT_COST, CostLike, token_cost
from odcsim.drop_in.plans import DropInWarning, plan_lengths
from odcsim.drop_in.trl import Packing, pack_indices
from odcsim.drop_in.verl import agreed_micro_batch_indices, micro_batch_indices, seqlen_balanced_partitions

__all__ = [
    "DEFAULT_COST",
    "CostLike",
    "DropInWarning",
    "Packing",
    "agreed_micro_batch_indices",
    "micro_batch_indices",
    "pack_indices",
    "plan_lengths",
    "seqlen_balanced_partitions",
    "token_cost",
]
