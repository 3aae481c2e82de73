"""The discrete-event engine: ranks as SimPy processes, collectives as rendezvous, shared links as servers.

    minibatch   `simulate`: an environment for every minibatch, and the outcome
    rank        a rank's compute stream: one process, which issues transfers and stands still for them
    program     the order of compute and transfers under each overlap
    transfers   what a rank issues: a transfer of its own, or its part in a collective
    links       transfers that share a link with those of other ranks
    recording   spans

It models all that `odcsim.schedule` describes, shared links included, and is the yardstick of faster engines. Time
passes by SimPy events alone, and events at equal times happen in the order in which they were scheduled, so equal
inputs give equal outcomes to the last bit.

A compute costs one event. A transfer costs one only where ranks stand still for it: whoever issues a transfer knows, or
learns, its end, and waits for it once it is needed and not over.
"""

from __future__ import annotations

from odcsim.engines.events.minibatch import simulate

__all__ = ["simulate"]
