"""From a scenario to what can be simulated: names looked up, files read, costs worked out.

Everything that can be wrong with a scenario beyond its schema is found here, before anything is simulated.
"""

from odcsim.resolve.case_schedules import collective_transport, over_collectives
from odcsim.resolve.resolved import ResolvedCase, ResolvedScenario
from odcsim.resolve.scenario import resolve

__all__ = ["ResolvedCase", "ResolvedScenario", "collective_transport", "over_collectives", "resolve"]
