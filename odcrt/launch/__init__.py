"""What `odcrt launch` does.

    script      a user's own script
    scenario    every case of a scenario, with `checks` before and `progress` meanwhile
    outcome     logs, and what is told of a failure

The processes are those of `odcrt.launching`; what a scenario's ranks run is in `odcrt.workload`.
"""
