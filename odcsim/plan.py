"""Plans: which samples each rank runs, in which microbatches, in which order.

A plan is what a policy returns and what both programs run. Sample indices refer to the minibatch's lengths. A
microbatch without samples is padding: a rank runs it only to meet the others' collectives.

Invariants, which `Plan.check` asserts:
    every sample appears exactly once, in a microbatch or among the dropped;
    no microbatch of more than one sample exceeds the cap, and one of a single sample only if `oversize` allowed it;
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
    """

    ranks: tuple[tuple[Microbatch, ...], ...]
    dropped: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Microbatches of each rank."""
        return tuple(len(microbatches) for microbatches in self.ranks)

    @property
    def has_equal_counts(self) -> bool:
        """Whether every rank runs as many microbatches as the others, which `fsdp` needs."""
        return len(set(self.counts)) <= 1

    def samples(self) -> Iterator[int]:
        """Every sample that is run, rank by rank, in the order of running."""
        return chain.from_iterable(chain.from_iterable(self.ranks))

    def padded(self) -> Plan:
        """The same plan with padding microbatches after the last, until every rank has as many."""
        most = max(self.counts, default=0)
        return Plan(
            ranks=tuple(microbatches + ((),) * (most - len(microbatches)) for microbatches in self.ranks),
            dropped=self.dropped,
        )

    def loads(self, lengths_S: IntArray) -> MicrobatchLoads:
        """Tokens, squared tokens and samples of every microbatch.

        Args:
            lengths_S: the minibatch's lengths in tokens, as the ranks run them (after truncation, if any).
        """
        counts_D = np.array(self.counts, dtype=np.int64)
        most = int(counts_D.max(initial=0))
        order_S = np.fromiter(self.samples(), dtype=np.int64)
        sizes = np.fromiter((len(microbatch) for rank in self.ranks for microbatch in rank), dtype=np.int64)
        rank_of = np.repeat(np.arange(len(self.ranks)), counts_D)
        position_of = np.concatenate([np.arange(count) for count in counts_D]) if counts_D.size else rank_of
        cell_of_sample = np.repeat(rank_of * most + position_of.astype(np.int64), sizes)
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
        seen = sorted(chain(self.samples(), self.dropped))
        assert seen == list(range(len(lengths_S))), "a sample is missing from the plan, or appears twice"
        if cap_tokens is not None:
            for rank, microbatches in enumerate(self.ranks):
                for microbatch in microbatches:
                    tokens = sum(int(lengths_S[sample]) for sample in microbatch)
                    assert tokens <= cap_tokens, f"rank {rank}: a microbatch of {tokens} tokens, cap {cap_tokens}"
