"""What is lost by having followed an advice if the cost model is wrong, or a rank is slow, and plans do not know.

Under each truth every candidate is simulated on the same minibatches; a candidate's loss is its mean minibatch over
that of the best candidate under that truth, less 1.

Legend: T truths, C candidates, N minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from odcsim.analysis.advice_candidates import Knob
from odcsim.analysis.advice_gain import NEGLIGIBLE, Gain, gain_over
from odcsim.arrays import FloatArray
from odcsim.scenario import Scenario

__all__ = ["Regret", "Truth", "truths_of"]

_ERRORS = (0.1, 0.2, 0.3)
_SLOWER = 1.2


@dataclass(frozen=True)
class Truth:
    """How the world may be.

    Attributes:
        label: for people.
        settings: dotted keys of the scenario with their values; none where the model is right.
    """

    label: str
    settings: Mapping[str, object]


def truths_of(scenario: Scenario) -> tuple[Truth, ...]:
    """The world as modelled; each microbatch's compute off by 10, 20 and 30%; the middle rank 1.2 times slower.

    Plans know nothing of it, but for a slow rank where the scenario says that speeds are known.
    """
    cluster = scenario.cluster
    truths = [Truth("as modelled", {})]
    truths += [
        # On top of what noise the scenario has: variances of independent factors' logarithms add up.
        Truth(f"compute off by {100 * error:.0f}%", {"cluster.compute_noise": math.hypot(cluster.compute_noise, error)})
        for error in _ERRORS
    ]
    if cluster.ranks > 1:
        # Plans may list ranks by load: the middle one is neither the busiest nor the idlest.
        rank = cluster.ranks // 2
        speeds = {**cluster.rank_speeds, rank: cluster.rank_speeds.get(rank, 1.0) / _SLOWER}
        known = ", and plans know" if scenario.planning.known_speeds else ""
        truths.append(Truth(f"rank {rank} {_SLOWER:g}x slower{known}", {"cluster.rank_speeds": speeds}))
    return tuple(truths)


@dataclass(frozen=True, eq=False)
class Regret:
    """What candidates lose under each truth.

    Attributes:
        truths: the first is the world as modelled.
        positions: of the candidates, among all that were simulated; at least one.
        knob: the advised one, turned for all of them; None where none is advised.
        seconds_TCN: under each truth.
        seed: of the resampling for intervals.
    """

    truths: tuple[Truth, ...]
    positions: tuple[int, ...]
    knob: Knob | None
    seconds_TCN: FloatArray
    seed: int

    @property
    def losses_TC(self) -> FloatArray:
        """Of each candidate against the best one under each truth, as shares."""
        mean_s_TC = self.seconds_TCN.mean(axis=2)
        losses_TC: FloatArray = mean_s_TC / mean_s_TC.min(axis=1, keepdims=True) - 1
        return losses_TC

    def worst(self, position: int) -> tuple[int, float]:
        """The truth under which a candidate loses most, and how much."""
        losses_T = self.losses_TC[:, self.positions.index(position)]
        truth = int(losses_T.argmax())
        return truth, float(losses_T[truth])

    def best(self, truth: int) -> int:
        """Position of the best candidate under a truth; the first of equals."""
        return self.positions[int(self.seconds_TCN[truth].mean(axis=1).argmin())]

    def gain(self, position: int, *, over: int, truth: int) -> Gain:
        """The gain of one candidate over another under a truth."""
        seconds_CN = self.seconds_TCN[truth]
        one, other = self.positions.index(position), self.positions.index(over)
        return gain_over(seconds_CN[one], seconds_CN[other], seed=self.seed)

    @property
    def safest(self) -> int:
        """Position of the candidate whose worst loss is the least; the first of equals."""
        return self.positions[int(np.argmin(self.losses_TC.max(axis=0)))]

    def safer_than(self, position: int) -> int | None:
        """Position of the safest candidate, if it is safer than another by more than what is negligible, or by chance.

        Its worst loss must be less by 1%, and where the other one loses most, its gain over it must not be by chance.
        """
        truth, loss = self.worst(position)
        is_less = loss - self.worst(self.safest)[1] >= NEGLIGIBLE
        return self.safest if is_less and self.gain(self.safest, over=position, truth=truth).matters else None
