"""What no plan can beat: fewest microbatches, and the least time of the busiest rank or of a minibatch in lockstep.

    bounds_fewest.py    microbatches that samples need at least
    bounds_samples.py   samples by length, and cost that microbatches hold at most
    bounds_busiest.py   the busiest rank's time, under any plan: for `odc`, and so for `fsdp` too
    bounds_lockstep.py  the time of all steps together, under any plan for `fsdp`

Every bound here is one, for each way of assigning samples to ranks and packing them under the cap, up to the rounding
of floating-point sums. None of them is always reached; exact.py finds what is, for a handful of samples.
"""

from odcsim.partition.bounds_busiest import compute_lower_bound_s
from odcsim.partition.bounds_fewest import count_fewest_microbatches
from odcsim.partition.bounds_lockstep import lockstep_lower_bound_s

__all__ = ["compute_lower_bound_s", "count_fewest_microbatches", "lockstep_lower_bound_s"]
