"""Plans: which samples each rank runs, in which microbatches, in which order.

A plan is what a policy returns and what both programs run. Sample indices refer to the minibatch's lengths. A
microbatch without samples is padding: a rank runs it only to meet the others' collectives.

A plan names the rank of every microbatch, or of none: then its microbatches are pulled as the minibatch runs, each by
whichever rank is free first. What came of it is a plan that names ranks (`Plan.assigned`).

Invariants, which `Plan.check` asserts:
    every sample appears exactly once, in a microbatch or among the dropped;
    no microbatch of more than one sample exceeds the cap, and one of a single sample only if `oversize` allowed it;
    where microbatches are pulled, no rank has any beforehand.
`equal_counts` plans give every rank the same number of microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from odcsim.arrays import FloatArray, IntArray

__all__ = ["Microbatch", "MicrobatchLoads", "Plan"]

Microbatch = tuple[int, ...]


@dataclass(frozen=True)
class MicrobatchLoads:
    """What the microbatches of one plan hold, in arrays padded with zeros beyond each rank's count.

    Attributes:
        counts_D: microbatches of each rank.
        tokens_DM: sum of the lengths, in tokens.
        squared_tokens_DM: sum of the squared lengths, in tokens squared.
        samples_DM: number of samples.
    """

    counts_D: IntArray
    tokens_DM: FloatArray
    squared_tokens_DM: FloatArray
    samples_DM: IntArray


@dataclass(frozen=True)
class Plan:
    """A policy's answer for one minibatch.

    Attributes:
        ranks: for each rank, its microbatches in the order of running, each a tuple of sample indices.
        dropped: samples that are not run, ascending.
        pulled: microbatches that whichever rank is free pulls, in this order; where there are any, every entry of
            `ranks` is empty.
    """

    ranks: tuple[tuple[Microbatch, ...], ...]
    dropped: tuple[int, ...] = ()
    pulled: tuple[Microbatch, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Microbatches of each rank, as far as they are known beforehand."""
        return tuple(len(microbatches) for microbatches in self.ranks)

    @property
    def has_equal_counts(self) -> bool:
        """Whether every rank runs as many microbatches as the others, which `fsdp` needs."""
        return not self.pulled and len(set(self.counts)) <= 1

    def samples(self) -> Iterator[int]:
        """Every sample that is run, rank by rank, in the order of running; then those of microbatches to be pulled."""
        return chain.from_iterable(chain(chain.from_iterable(self.ranks), self.pulled))

    def padded(self) -> Plan:
        """The same plan with padding microbatches after the last, until every rank has as many.

        Microbatches that are pulled need none: no rank has others to match.
        """
        most = max(self.counts, default=0)
        return Plan(
            ranks=tuple(microbatches + ((),) * (most - len(microbatches)) for microbatches in self.ranks),
            dropped=self.dropped,
            pulled=self.pulled,
        )

    def assigned(self, rank_of_pulled: Sequence[int]) -> Plan:
        """The plan that came of pulling: it names the rank of every microbatch.

        Args:
            rank_of_pulled: for each of `pulled`, the rank that pulled it. A rank runs what it pulls in their order.
        """
        assert len(rank_of_pulled) == len(self.pulled), f"ranks of {len(rank_of_pulled)} of {len(self.pulled)} pulled"
        ranks = [list(microbatches) for microbatches in self.ranks]
        for rank, microbatch in zip(rank_of_pulled, self.pulled, strict=True):
            ranks[rank].append(microbatch)
        return Plan(ranks=tuple(map(tuple, ranks)), dropped=self.dropped)

    def loads(self, lengths_S: IntArray) -> MicrobatchLoads:
        """Tokens, squared tokens and samples of every microbatch of a plan that names ranks.

        Args:
            lengths_S: the minibatch's lengths in tokens, as the ranks run them (after truncation, if any).
        """
        assert not self.pulled, "which rank runs a microbatch that is pulled is known once the plan is `assigned`"
        counts_D = np.array(self.counts, dtype=np.int64)
        most = int(counts_D.max(initial=0))
        order_S = np.fromiter(self.samples(), dtype=np.int64)
        sizes = np.fromiter((len(microbatch) for rank in self.ranks for microbatch in rank), dtype=np.int64)
        rank_of = np.repeat(np.arange(len(self.ranks)), counts_D)
        position_of = np.arange(sizes.size) - np.repeat(np.cumsum(counts_D) - counts_D, counts_D)
        cell_of_sample = np.repeat(rank_of * most + position_of, sizes)
        shape = (len(self.ranks), most)
        run_S = lengths_S[order_S].astype(np.float64)

        def summed(weights: FloatArray | None) -> FloatArray:
            cells = np.bincount(cell_of_sample, weights=weights, minlength=shape[0] * most)
            return cells.astype(np.float64).reshape(shape)

        return MicrobatchLoads(
            counts_D=counts_D,
            tokens_DM=summed(run_S),
            squared_tokens_DM=summed(run_S**2),
            samples_DM=summed(None).astype(np.int64),
        )

    def check(self, lengths_S: Sequence[int] | IntArray, *, ranks: int, cap_tokens: int | None = None) -> None:
        """Assert the invariants that hold for every plan; `cap_tokens` only where no sample may exceed the cap."""
        assert len(self.ranks) == ranks, f"{len(self.ranks)} ranks in the plan, {ranks} in the cluster"
        assert not (self.pulled and any(self.ranks)), "microbatches both on ranks and to be pulled"
        run_S = np.fromiter(self.samples(), dtype=np.int64)
        seen_S = np.sort(np.concatenate([run_S, np.array(self.dropped, dtype=np.int64)]))
        is_each_once = np.array_equal(seen_S, np.arange(len(lengths_S)))
        assert is_each_once, "a sample is missing from the plan, or appears twice"
        if cap_tokens is None:
            return
        sizes = np.fromiter(map(len, chain(chain.from_iterable(self.ranks), self.pulled)), dtype=np.int64)
        # Sums of whole numbers below 2^53 are exact in floating point.
        tokens = np.bincount(
            np.repeat(np.arange(sizes.size), sizes), weights=np.asarray(lengths_S)[run_S], minlength=sizes.size
        )
        over = np.flatnonzero(tokens > cap_tokens)
        if over.size:
            rank = int(np.searchsorted(np.cumsum(self.counts), over[0], side="right"))
            place = f"rank {rank}" if rank < ranks else "to be pulled"
            raise AssertionError(f"{place}: a microbatch of {tokens[over[0]]:.0f} tokens, cap {cap_tokens}")
