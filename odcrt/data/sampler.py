"""A sampler that hands each rank balanced microbatches, minibatch after minibatch.

Every rank computes the same plan from the same lengths, without communication, by the policies that the simulator runs.
PyTorch is not needed: a sampler is an iterable with a length, as `torch.utils.data.DataLoader` takes one.

Invariants:
    an epoch hands out every sample once, over all ranks, or counts it as dropped;
    nothing depends on the rank but which part of the plan is handed out;
    the cursor counts samples of the epoch's order, which neither the number of ranks nor the size of a minibatch
    changes: what was not handed out before it is handed out after it, whatever they are then.

Words: a *pass* is what one `iter` of the sampler yields: the rest of an epoch, from the cursor to the epoch's end.
Unit: tokens. Legend: S samples of a minibatch, N of the data set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np

from odcrt.data.checks import whole_number
from odcrt.data.dataset_order import DatasetOrder
from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.drop_in.inputs import speeds_D_of
from odcsim.errors import InputError
from odcsim.plan import Plan
from odcsim.policies import MinibatchPlan, Oversize, Policy, apply_oversize, find_policy, plan_minibatch
from odcsim.results import Conservation

__all__ = ["DEFAULT_COST", "BalancedBatchSampler", "MicrobatchView", "SampledMinibatch", "SamplerWarning"]

DEFAULT_COST = TokenCost(quadratic=1.0, linear=24576.0)
"""In the proportions of a 7B decoder's FLOPs, as verl balances by. Only the proportions matter to balancing."""

_STATE_SCHEMA = "odcrt.data.sampler/1"
_TOTALS = tuple(attribute.name for attribute in fields(Conservation))
_NOTHING = Conservation(samples=0, dropped_samples=0, tokens=0, dropped_tokens=0, truncated_tokens=0)


class SamplerWarning(UserWarning):
    """A setting of a sampler has no effect, or not quite the one that it suggests."""


@dataclass(frozen=True, eq=False)
class SampledMinibatch:
    """One minibatch of the data set and its plan, the same on every rank.

    Attributes:
        samples_S: indices into the data set; the plan's indices are places in here.
        planned: the plan, and every sample's tokens as it is run.
    """

    samples_S: IntArray
    planned: MinibatchPlan

    @property
    def plan(self) -> Plan:
        """The plan, over places in `samples_S`."""
        return self.planned.plan

    @property
    def dropped(self) -> list[int]:
        """Indices into the data set of samples that are not run."""
        return [int(self.samples_S[place]) for place in self.plan.dropped]

    @property
    def run_samples(self) -> int:
        """Samples that are run, over all ranks."""
        return self.samples_S.size - len(self.plan.dropped)

    @property
    def run_tokens(self) -> int:
        """Tokens that are run, over all ranks."""
        return int(self.planned.lengths_S.sum())

    @property
    def predicted_tokens(self) -> int:
        """Labels of the minibatch if every token is learned: all but the first of each sample, over all ranks."""
        return self.run_tokens - self.run_samples

    def microbatches(self, rank: int) -> list[list[int]]:
        """The rank's microbatches, in the order of running, as indices into the data set; an empty one is padding."""
        return [[int(self.samples_S[place]) for place in microbatch] for microbatch in self.plan.ranks[rank]]


class BalancedBatchSampler:
    """Balanced microbatches of one rank: an iterable over the minibatches of an epoch.

    Each step yields the rank's microbatches of one minibatch, each a list of indices into the data set. A rank may get
    none at all where there are fewer samples than ranks; it takes part in the minibatch all the same. Samples that
    `oversize: truncate` cuts are to be cut to `max_tokens` by whoever loads them.

    With a `DataLoader`, `batch_sampler=sampler` asks the data set for one microbatch (a list of indices) at a time and
    makes a batch of a minibatch; `batch_sampler=sampler.microbatches()` makes one of every microbatch.

        sampler = BalancedBatchSampler(lengths, rank=0, world_size=2, samples_per_rank=4, max_tokens=65536)
        for microbatches in sampler:                 # one minibatch
            with odc.minibatch():
                for samples in microbatches:         # as many as this rank has
                    model(pack([data[sample] for sample in samples])) ...

    The sampler is a cursor: another `iter` goes on where the last one was left, and starts the next epoch, shuffled
    anew, after the end of one. Draw from one iterator at a time.
    """

    def __init__(
        self,
        lengths: Sequence[int] | IntArray,
        *,
        rank: int,
        world_size: int,
        max_tokens: int,
        samples_per_rank: int | None = None,
        samples_per_minibatch: int | None = None,
        policy: str | Policy = "lb-mini",
        cost: TokenCost = DEFAULT_COST,
        oversize: Oversize = "error",
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        group_size: int = 1,
        keep_groups: bool = False,
        pad: bool = False,
        speeds: Sequence[float] | FloatArray | None = None,
    ) -> None:
        """Check everything that could go wrong later, alike on every rank.

        Args:
            lengths: tokens of every sample of the data set, at least 1 each.
            rank: whose microbatches are handed out.
            world_size: ranks that share the minibatches.
            max_tokens: hard cap on the tokens of a microbatch.
            samples_per_rank: samples of a minibatch per rank; any rank may get more or less.
            samples_per_minibatch: samples of a minibatch over all ranks; instead of `samples_per_rank`.
            policy: how samples become microbatches on ranks; a name that `odcsim` knows, or a policy.
            cost: time of a microbatch, which plans are balanced by.
            oversize: what happens to a sample over the cap.
            seed: of the order of samples.
            shuffle: whether each epoch has an order of its own; otherwise each has the data set's.
            drop_last: whether samples at the end of an epoch that do not fill a minibatch are dropped (and counted as
                such); otherwise they make a smaller one.
            group_size: consecutive samples that stay together in the order (responses to one prompt), and in one
                minibatch if its size is a multiple of it.
            keep_groups: whether the samples of a group that are in one minibatch stay on one rank as well.
            pad: whether ranks with fewer microbatches get padding ones after their last, which collectives need.
            speeds: speed of each rank, where they differ: 0.5 for one that takes twice as long. The same on every
                rank, and for a policy that looks at them (`independent`); the others plan as if all were alike.

        Raises:
            InputError: a value that is not allowed, or samples over the cap under `oversize: error`.

        Warns:
            SamplerWarning: a setting without effect, or groups that minibatches cut.
        """
        self._order = DatasetOrder(lengths, seed=seed, shuffle=shuffle, group_size=group_size)
        lengths_N = self._order.lengths_N
        self._ranks = whole_number("world_size", world_size, least=1)
        self._rank = whole_number("rank", rank, least=0, most=self._ranks - 1)
        self._cap_tokens = whole_number("max_tokens", max_tokens, least=1)
        if (samples_per_rank is None) == (samples_per_minibatch is None):
            raise InputError("exactly one of them must be given", key="samples_per_rank, samples_per_minibatch")
        if samples_per_rank is not None:
            self._minibatch_samples = self._ranks * whole_number("samples_per_rank", samples_per_rank, least=1)
        else:
            self._minibatch_samples = whole_number("samples_per_minibatch", samples_per_minibatch, least=1)
        self._policy = policy if isinstance(policy, Policy) else find_policy(policy, key="policy")
        if self._policy.is_pulled:
            raise InputError(
                "its microbatches are pulled while a minibatch runs, and a sampler hands them out before; allowed: a "
                "policy that names ranks",
                key="policy",
                value=self._policy.name,
            )
        if keep_groups and not self._policy.keeps_groups:
            raise InputError(
                f"{self._policy.name} cannot keep the samples of a group on one rank; allowed: a policy that can",
                key="keep_groups",
                value=keep_groups,
            )
        self._cost = _checked_cost(cost, lengths_N)
        self._speeds_D = None if speeds is None else speeds_D_of(speeds, ranks=self._ranks)
        # Over the cap now means over the cap in some minibatch: better now, and named by its place in the data set.
        apply_oversize(lengths_N, cap_tokens=self._cap_tokens, oversize=oversize)
        self._oversize: Oversize = oversize
        self._drop_last, self._keep_groups, self._pad = drop_last, keep_groups, pad
        if drop_last and lengths_N.size < self._minibatch_samples:
            raise InputError(
                f"leaves nothing: the data set has {lengths_N.size} samples, a minibatch {self._minibatch_samples}",
                key="drop_last",
                value=drop_last,
            )
        self._pass = self._entered(epoch=0, first=0, totals=_NOTHING)
        self._planned: tuple[int, int, SampledMinibatch] | None = None
        for text in self._doubtful_settings():
            warnings.warn(text, SamplerWarning, stacklevel=2)

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or else of the one that the next `iter` begins."""
        return self._current().epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, or stay within it if the cursor is in it already.

        Raises:
            InputError: not a whole number of at least 0.
        """
        wanted = whole_number("epoch", epoch, least=0)
        cursor = self._continued()
        if cursor.epoch != wanted:
            self._pass = self._entered(epoch=wanted, first=0, totals=cursor.totals[-1])

    def __len__(self) -> int:
        """Minibatches of the pass under way, or else of the one that the next `iter` begins."""
        return self._count(self._current())

    def __iter__(self) -> Iterator[list[list[int]]]:
        """One item a minibatch, to the epoch's end: this rank's microbatches, each a list of indices."""
        self._pass = self._continued()
        return self._draw(self._pass)

    def microbatches(self) -> MicrobatchView:
        """The same pass with one item a microbatch."""
        return MicrobatchView(self)

    def plan_of(self, minibatch: int) -> Plan:
        """The plan of a minibatch of the latest pass, counted from 0, over places in the minibatch."""
        return self.minibatch_at(minibatch).plan

    def minibatch_at(self, minibatch: int) -> SampledMinibatch:
        """A minibatch of the latest pass, counted from 0, whether it was drawn already or not.

        Raises:
            InputError: the pass has no such minibatch.
        """
        index = whole_number("minibatch", minibatch, least=0, most=self._count(self._pass) - 1)
        return self._sampled(self._pass, index)

    def count_microbatches(self) -> int:
        """Microbatches of this rank in as many minibatches as `len` says; it takes planning them all."""
        return sum(self.microbatch_counts())

    def microbatch_counts(self) -> list[int]:
        """Microbatches of this rank in each of these minibatches: where they end, for a loop over microbatches."""
        current = self._current()
        return [len(self._sampled(current, index).plan.ranks[self._rank]) for index in range(self._count(current))]

    def conservation(self) -> Conservation:
        """Where samples and tokens went, over all ranks, since the sampler was made (or its state before it was saved):
        in = run + dropped, and truncated for tokens. The rest that `drop_last` drops is counted with the last
        minibatch.
        """
        return self._pass.totals[-1]

    def state_dict(self, *, minibatches: int | None = None) -> dict[str, Any]:
        """The cursor, the same on every rank: numbers, texts and flags only.

        Args:
            minibatches: how many of the latest pass count as done. None: all that were drawn, the one that the loop
                is at included. A data loader with workers draws ahead of training: tell it how many were trained on.

        Raises:
            InputError: more than were drawn.
        """
        latest = self._pass
        done = (
            latest.drawn
            if minibatches is None
            else whole_number("minibatches", minibatches, least=0, most=latest.drawn)
        )
        epoch, consumed = self._position(latest, done)
        totals = latest.totals[done]
        return {
            "schema": _STATE_SCHEMA,
            **self._order.identity(),
            "epoch": epoch,
            "consumed_samples": consumed,
            "totals": {name: getattr(totals, name) for name in _TOTALS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler of the same data set, order and seed was; its ranks and minibatches may differ.

        Raises:
            InputError: a state of something else, or none at all.
        """
        for key, expected in {"schema": _STATE_SCHEMA, **self._order.identity()}.items():
            found = _entry(state, key)
            if found != expected:
                raise InputError(
                    f"the state is of another data set or order; here it is {expected!r}", key=key, value=found
                )
        totals = _entry(state, "totals")
        if not isinstance(totals, Mapping):
            raise InputError("must be a mapping", key="totals", value=totals)
        self._pass = self._entered(
            epoch=whole_number("epoch", _entry(state, "epoch"), least=0),
            first=whole_number(
                "consumed_samples", _entry(state, "consumed_samples"), least=0, most=self._order.lengths_N.size - 1
            ),
            totals=Conservation(**{name: whole_number(name, _entry(totals, name), least=0) for name in _TOTALS}),
        )

    def _entered(self, *, epoch: int, first: int, totals: Conservation) -> _Pass:
        """The pass from there on; the next epoch's where `drop_last` leaves no minibatch of this one."""
        entered = _Pass(epoch=epoch, first=first, totals=[totals])
        if self._count(entered):
            return entered
        return _Pass(epoch=epoch + 1, first=0, totals=[_sum(totals, self._rest(entered))])

    def _continued(self) -> _Pass:
        """A pass from where the latest one is."""
        epoch, first = self._position(self._pass, self._pass.drawn)
        return self._entered(epoch=epoch, first=first, totals=self._pass.totals[-1])

    def _current(self) -> _Pass:
        return self._continued() if self._pass.is_over else self._pass

    def _count(self, of: _Pass) -> int:
        """Minibatches of a pass."""
        left = self._order.lengths_N.size - of.first
        return left // self._minibatch_samples if self._drop_last else -(-left // self._minibatch_samples)

    def _position(self, of: _Pass, drawn: int) -> tuple[int, int]:
        """Epoch and samples of it that were handed out, after so many minibatches of a pass."""
        return (of.epoch + 1, 0) if drawn == self._count(of) else (of.epoch, of.first + drawn * self._minibatch_samples)

    def _rest(self, of: _Pass) -> Conservation:
        """What `drop_last` drops at the end of a pass."""
        tail = self._order.of_epoch(of.epoch)[of.first + self._count(of) * self._minibatch_samples :]
        tokens = int(self._order.lengths_N[tail].sum())
        return Conservation(
            tail.size, dropped_samples=tail.size, tokens=tokens, dropped_tokens=tokens, truncated_tokens=0
        )

    def _draw(self, of: _Pass) -> Iterator[list[list[int]]]:
        count = self._count(of)
        try:
            for index in range(count):
                sampled = self._sampled(of, index)
                total = _sum(of.totals[-1], self._account(sampled))
                # Drawn before it is handed out: whoever saves the state in the loop has trained on this one.
                of.totals.append(_sum(total, self._rest(of)) if index == count - 1 else total)
                yield sampled.microbatches(self._rank)
        finally:
            of.is_over = True

    def _account(self, sampled: SampledMinibatch) -> Conservation:
        return Conservation(
            samples=sampled.samples_S.size,
            dropped_samples=len(sampled.plan.dropped),
            tokens=int(self._order.lengths_N[sampled.samples_S].sum()),
            dropped_tokens=sampled.planned.dropped_tokens,
            truncated_tokens=sampled.planned.truncated_tokens,
        )

    def _sampled(self, of: _Pass, index: int) -> SampledMinibatch:
        start = of.first + index * self._minibatch_samples
        # A loop asks for the minibatch that was just handed out, more often than not.
        if self._planned is not None and self._planned[:2] == (of.epoch, start):
            return self._planned[2]
        samples_S = self._order.of_epoch(of.epoch)[start : start + self._minibatch_samples]
        planned = plan_minibatch(
            self._policy,
            self._order.lengths_N[samples_S],
            ranks=self._ranks,
            cap_tokens=self._cap_tokens,
            cost=self._cost,
            oversize=self._oversize,
            speeds_D=self._speeds_D,
            groups_S=samples_S // self._order.group_size if self._keep_groups else None,
        )
        if self._pad:
            planned = replace(planned, plan=planned.plan.padded())
        sampled = SampledMinibatch(samples_S=samples_S, planned=planned)
        self._planned = (of.epoch, start, sampled)
        return sampled

    def _doubtful_settings(self) -> Iterator[str]:
        """A sentence for every setting that changes nothing, or not all that it seems to."""
        name, order = self._policy.name, self._order
        if self._pad and self._policy.equal_counts:
            yield f"pad has no effect: {name} gives equal counts already"
        if not order.shuffle and order.seed:
            yield "seed has no effect without shuffle"
        if not self._policy.uses_cost and self._cost != DEFAULT_COST:
            yield f"cost has no effect: {name} does not balance by it"
        if self._speeds_D is not None and not self._policy.uses_speeds:
            yield f"speeds has no effect: {name} plans as if all ranks were alike"
        if self._keep_groups and order.group_size == 1:
            yield "keep_groups has no effect: group_size is 1"
        if order.group_size > 1:
            if self._minibatch_samples % order.group_size:
                yield (
                    f"group_size: minibatches of {self._minibatch_samples} samples cut groups of {order.group_size}; "
                    f"use a multiple of {order.group_size}"
                )
            elif order.lengths_N.size % order.group_size:
                yield (
                    f"group_size: {order.lengths_N.size} samples make no whole number of groups of {order.group_size}; "
                    "minibatches cut the groups that come after the smaller one"
                )


class MicrobatchView:
    """A sampler's microbatches one by one; where minibatches end, `BalancedBatchSampler.microbatch_counts` tells.

    Drawing the first microbatch of a minibatch draws the minibatch: give `BalancedBatchSampler.state_dict` the number
    of minibatches that are done.
    """

    def __init__(self, sampler: BalancedBatchSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        """Microbatches of the rank, to the epoch's end, each a list of indices."""
        return chain.from_iterable(self._sampler)

    def __len__(self) -> int:
        """Microbatches of the pass; it takes planning all of its minibatches."""
        return self._sampler.count_microbatches()


@dataclass(eq=False)
class _Pass:
    """The rest of an epoch, to be handed out minibatch by minibatch.

    Attributes:
        epoch: counted from 0.
        first: samples of the epoch that were handed out before this pass.
        totals: what was handed out since the sampler was made: before the pass, and after each minibatch drawn from it.
        is_over: whether its iterator has ended, or was given up.
    """

    epoch: int
    first: int
    totals: list[Conservation]
    is_over: bool = False

    @property
    def drawn(self) -> int:
        return len(self.totals) - 1


def _sum(one: Conservation, other: Conservation) -> Conservation:
    return Conservation(**{name: getattr(one, name) + getattr(other, name) for name in _TOTALS})


def _entry(state: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - checked by whoever asked for it
    if key not in state:
        raise InputError("missing; this is not the state of a sampler", key=key)
    return state[key]


def _checked_cost(cost: TokenCost, lengths_N: IntArray) -> TokenCost:
    costs_N = cost.sample_costs_S(lengths_N)
    wrong_N = ~np.isfinite(costs_N) | (costs_N < 0)
    if wrong_N.any():
        tokens = int(lengths_N[wrong_N.argmax()])
        raise InputError(
            f"a sample of {tokens} tokens must cost 0 or more, and not without end", key="cost", value=cost
        )
    return cost
