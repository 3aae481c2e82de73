"""The shapes of verl's balancing, which slime and miles took over.

`seqlen_balanced_partitions` takes the arguments of their `get_seqlen_balanced_partitions`, in the same order, and its
answer is what they go on with: k lists that hold every index once, each ascending. What they assert holds as well: no
list is empty, and with `equal_size` all are of one size, wherever the number of items allows it. Where it does not,
they fail, and this does not.

`micro_batch_indices` gives the lists of indices of `rearrange_micro_batches`; the tensors stay with the caller.

Invariants: no microbatch holds more tokens than the cap, unless it is a single sample that may (`allow_oversize`);
lists come by descending cost, so that those of equal position on different ranks are alike; empty ones come last.

Legend: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.drop_in.costs import CostLike, token_cost
from odcsim.drop_in.inputs import costs_of, lengths_S_of, whole_number
from odcsim.errors import InputError
from odcsim.partition.balance import balance
from odcsim.partition.bounds import count_fewest_microbatches

__all__ = ["agreed_micro_batch_indices", "micro_batch_indices", "seqlen_balanced_partitions"]


def seqlen_balanced_partitions(
    seqlen_list: Sequence[float] | IntArray | FloatArray,
    k_partitions: int,
    equal_size: bool = False,  # noqa: FBT001, FBT002 - verl's signature
) -> list[list[int]]:
    """Split items into `k_partitions` lists so that the largest sum is as small as can be found.

    Args:
        seqlen_list: what the lists are balanced by, not negative: tokens, or the work that they stand for (verl passes
            24576 s + s^2 for a sample of s tokens). It is taken as it comes; no cost model is laid over it.
        k_partitions: number of lists, at least 1.
        equal_size: whether sizes may differ by one at most.

    Returns:
        `k_partitions` lists of indices, ascending, by descending sum. With fewer items than lists, the last are empty.

    Raises:
        InputError: a value that is not allowed.
    """
    costs = costs_of(seqlen_list, key="seqlen_list")
    parts = balance(costs, parts=whole_number("k_partitions", k_partitions, least=1), equal_counts=equal_size)
    assert parts is not None, "without a cap there is always an arrangement"
    return _with_none_empty(parts, costs)


def micro_batch_indices(
    lengths: Sequence[int] | IntArray,
    max_token_len: int,
    *,
    num_batches_divided_by: int = 1,
    min_num_micro_batch: int = 0,
    cost: CostLike | None = None,
    allow_oversize: bool = False,
) -> list[list[int]]:
    """One rank's samples as microbatches: as few as were found under the cap, of near-equal cost.

    Args:
        lengths: effective lengths of the rank's samples in tokens (no padding), at least 1.
        max_token_len: most tokens of a microbatch.
        num_batches_divided_by: what the count of microbatches is to be a multiple of.
        min_num_micro_batch: fewest microbatches.
        cost: what a microbatch costs, see `token_cost`; None: a 7B decoder on an A100.
        allow_oversize: whether a sample over the cap runs in a microbatch of its own rather than being refused.

    Returns:
        lists of indices, ascending. Empty ones are padding: more microbatches were asked for than there are samples.

    Raises:
        InputError: a value that is not allowed, or a sample over the cap.
    """
    return _agreed(
        {"lengths": lengths},
        cap_tokens=whole_number("max_token_len", max_token_len, least=1),
        multiple_of=whole_number("num_batches_divided_by", num_batches_divided_by, least=1),
        fewest=whole_number("min_num_micro_batch", min_num_micro_batch, least=0),
        cost=token_cost(cost),
        allow_oversize=allow_oversize,
    )[0]


def agreed_micro_batch_indices(
    lengths_of_ranks: Sequence[Sequence[int] | IntArray],
    max_token_len: int,
    *,
    num_batches_divided_by: int = 1,
    min_num_micro_batch: int = 0,
    cost: CostLike | None = None,
    allow_oversize: bool = False,
) -> list[list[list[int]]]:
    """Every rank's samples as microbatches, as many on each: the fewest found with which all ranks keep the cap.

    Ranks that are given the same lists agree on the count without communication: each computes all, and takes its own.

    Args:
        lengths_of_ranks: for each rank, the effective lengths of its samples; a rank may have none.
        max_token_len: most tokens of a microbatch.
        num_batches_divided_by: what the count of microbatches is to be a multiple of.
        min_num_micro_batch: fewest microbatches.
        cost: what a microbatch costs, see `token_cost`; None: a 7B decoder on an A100.
        allow_oversize: whether a sample over the cap runs in a microbatch of its own rather than being refused.

    Returns:
        for each rank its microbatches, lists of indices into the rank's own samples. Empty ones are padding: the rank
        has fewer samples than the count agreed on.

    Raises:
        InputError: a value that is not allowed, or a sample over the cap; the same on every rank.
    """
    return _agreed(
        {f"lengths_of_ranks[{rank}]": lengths for rank, lengths in enumerate(lengths_of_ranks)},
        cap_tokens=whole_number("max_token_len", max_token_len, least=1),
        multiple_of=whole_number("num_batches_divided_by", num_batches_divided_by, least=1),
        fewest=whole_number("min_num_micro_batch", min_num_micro_batch, least=0),
        cost=token_cost(cost),
        allow_oversize=allow_oversize,
    )


def _agreed(
    lengths_by_key: dict[str, Sequence[int] | IntArray],
    *,
    cap_tokens: int,
    multiple_of: int,
    fewest: int,
    cost: TokenCost,
    allow_oversize: bool,
) -> list[list[list[int]]]:
    """Microbatches of each rank, whose lengths the caller calls by that key."""
    ranks = [
        _Rank.of(lengths, key=key, cap_tokens=cap_tokens, cost=cost, allow_oversize=allow_oversize)
        for key, lengths in lengths_by_key.items()
    ]
    for rank in ranks:
        fewest = max(fewest, count_fewest_microbatches(rank.tokens_S, cap_tokens=cap_tokens))
    count = -(-fewest // multiple_of) * multiple_of
    # Ends, at the latest when every sample is alone.
    while True:
        split = [microbatches for rank in ranks if (microbatches := rank.split(count)) is not None]
        if len(split) == len(ranks):
            return split
        count += multiple_of


@dataclass(frozen=True)
class _Rank:
    """One rank's samples: their costs, and their tokens, no more than the cap where a sample is over it."""

    costs_S: list[float]
    tokens_S: list[int]
    cap_tokens: int

    @classmethod
    def of(
        cls,
        lengths: Sequence[int] | IntArray,
        *,
        key: str,
        cap_tokens: int,
        cost: TokenCost,
        allow_oversize: bool,
    ) -> _Rank:
        lengths_S = lengths_S_of(lengths, key=key)
        over = np.flatnonzero(lengths_S > cap_tokens)
        if over.size and not allow_oversize:
            raise InputError(
                f"the sample exceeds the cap of {cap_tokens} tokens (max_token_len); raise it, or let such samples run "
                "alone by allow_oversize=True",
                key=f"{key}[{over[0]}]",
                value=int(lengths_S[over[0]]),
            )
        # An oversized sample counts as one of cap tokens, so that nothing goes with it.
        tokens_S = np.minimum(lengths_S, cap_tokens)
        return cls(cost.sample_costs_S(lengths_S).tolist(), tokens_S.tolist(), cap_tokens)

    def split(self, count: int) -> list[list[int]] | None:
        """Exactly `count` microbatches; None where no arrangement under the cap was found."""
        samples = len(self.costs_S)
        if samples <= count:
            by_cost = sorted(range(samples), key=lambda sample: (-self.costs_S[sample], sample))
            return [[sample] for sample in by_cost] + [[] for _ in range(count - samples)]
        parts = balance(self.costs_S, parts=count, tokens_S=self.tokens_S, cap_tokens=self.cap_tokens)
        return None if parts is None else _with_none_empty(parts, self.costs_S)


def _with_none_empty(parts: Sequence[Sequence[int]], costs_S: Sequence[float]) -> list[list[int]]:
    """The parts by descending cost, with an item in each as long as there are items for that.

    An empty part gets the cheapest item of the costliest part that can spare one: no part comes to cost more than the
    costliest did, nor to hold more than it did.
    """
    filled = [list(part) for part in parts]

    def cost_of(part: list[int]) -> float:
        return sum(costs_S[item] for item in part)

    for part in filled:
        if not part:
            givers = [other for other in filled if len(other) > 1]
            if not givers:
                break
            giver = max(givers, key=cost_of)
            part.append(min(giver, key=lambda item: (costs_S[item], item)))
            giver.remove(part[0])
    return sorted((sorted(part) for part in filled), key=lambda part: (not part, -cost_of(part), part))
