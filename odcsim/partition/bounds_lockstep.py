"""The least time of a minibatch whose ranks meet after every microbatch, as under `fsdp`.

The k-th microbatches of all ranks are a *step*. It takes as long as its longest microbatch: the cost of that one, which
is called the step's *height* here, and the constant.

Legend: S samples, longest first; K steps, highest first; K1 so many of them, from 0; D ranks.
"""

from __future__ import annotations

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds_busiest import busiest_rank_s
from odcsim.partition.bounds_samples import SortedSamples

__all__ = ["lockstep_lower_bound_s", "lockstep_steps_s"]


def lockstep_lower_bound_s(lengths_S: IntArray, *, cost: TokenCost, cap_tokens: int, ranks: int) -> float:
    """Seconds that all steps together take at least, under any plan for `fsdp`, on ranks of speed 1.

    There are at least K = ceil(fewest microbatches / D) steps, and no fewer than some rank needs to hold a D-th of all
    cost. That gives c K for the constants c. To this comes the largest of two bounds on the sum of the steps' heights
    H_1 >= H_2 >= ...
    1. No rank alone computes longer than the steps take: `compute_lower_bound_s`, without the constant.
    2. For any m: h_1 + ... + h_m + (cost of all samples - F_m) / D, where h_k is no more than H_k, and F_m is no less
       than what the first m steps hold as long as H_k = h_k for them. Proof: where a height is raised above h_k, a step
       can hold D times as much more; the other steps hold at most D H_k. So all cost is at most
       F_m + D (H_1 - h_1 + ... + H_m - h_m + H_(m+1) + ...).

    The heights h_k (`_least_heights_K`) and F_m, the lesser of two (`_most_held_K1`), are proven where they are made.
    m = 0 is an even spread. With large m this is the sum of all h_k, and of what does not fit beside the samples that
    set them.

    Args:
        lengths_S: lengths as they are run, in tokens; those of 0 tokens (dropped) are left out.
        cost: time of a microbatch; coefficients not negative.
        cap_tokens: most tokens of a microbatch; a longer sample has a microbatch of its own.
        ranks: D, at least 1.

    Returns:
        0.0 where there is no sample.
    """
    assert ranks >= 1, f"{ranks} ranks"
    samples = SortedSamples.of(lengths_S, cost=cost, cap_tokens=cap_tokens)
    return max(
        lockstep_steps_s(samples, constant=cost.constant, ranks=ranks),
        busiest_rank_s(samples, constant=cost.constant, speeds_D=np.ones(ranks)),
    )


def lockstep_steps_s(samples: SortedSamples, *, constant: float, ranks: int) -> float:
    """`lockstep_lower_bound_s` for samples that are sorted already, less what `busiest_rank_s` says of them.

    `constant` is of a microbatch, in seconds.
    """
    if samples.count == 0:
        return 0.0
    heights_K = _least_heights_K(samples, ranks=ranks)
    held_K1 = _most_held_K1(samples, heights_K, ranks=ranks)
    stacked_s = np.max(np.concatenate([[0.0], np.cumsum(heights_K)]) + (samples.cost - held_K1) / ranks)
    heights_s = max(float(stacked_s), busiest_rank_s(samples, constant=0.0, speeds_D=np.ones(ranks)))
    return heights_s + constant * heights_K.size


def _least_heights_K(samples: SortedSamples, *, ranks: int) -> FloatArray:
    """Heights h_k that the steps have at least, the k-th highest step h_k. The larger of two, for every k.

    1. If at most j of the i longest samples can share a microbatch, the first k steps hold at most k j D of these. So
       where i > k j D, step k + 1 or one after it, which is no higher, has one of the i longest. With j = 1 that is
       every D-th of the samples of more than half the cap.
    2. At least M - k D of the M fewest microbatches come after the first k steps, each with a sample of its own: the
       largest costs no less than the (M - k D)-th shortest sample. Any step costs no less than the shortest.
    """
    fewest, costs_S = samples.fewest_microbatches, samples.costs_S
    for_fair_share = int(samples.fewest_to_hold_N(np.array([samples.cost / ranks]))[0])
    heights_K = np.zeros(max(-(-fewest // ranks), for_fair_share))
    mates_S = samples.cap_tokens // samples.capped_S
    np.maximum.at(heights_K, np.arange(samples.count) // (mates_S * ranks), costs_S)
    after_K = np.maximum(fewest - ranks * np.arange(heights_K.size), 1)
    np.maximum(heights_K, costs_S[samples.count - after_K], out=heights_K)
    descending_K: FloatArray = np.maximum.accumulate(heights_K[::-1])[::-1]
    return descending_K


def _most_held_K1(samples: SortedSamples, heights_K: FloatArray, *, ranks: int) -> FloatArray:
    """F_m for m = 0 to K: cost that the first m steps hold at most, as long as step k has height h_k.

    1. That of the longest samples of m D cap tokens (`SortedSamples.densest_N`).
    2. A microbatch whose longest sample is i holds at most a u_i (`SortedSamples.most_in_one_S`). It also holds at most
       its step's height. The sum over microbatches of min(u, height) is largest where the largest u meet the largest
       heights.
    """
    steps = heights_K.size
    most_KD = np.zeros(steps * ranks)
    filled = min(most_KD.size, samples.count)
    most_KD[:filled] = samples.most_in_one_S[:filled]
    in_step_K = np.minimum(most_KD.reshape(steps, ranks), heights_K[:, np.newaxis]).sum(axis=1)
    microbatches_K1: IntArray = ranks * np.arange(steps + 1)
    held_K1: FloatArray = np.minimum(samples.densest_N(microbatches_K1), np.concatenate([[0.0], np.cumsum(in_step_K)]))
    return held_K1
