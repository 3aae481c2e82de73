"""Foreign traces, turned into run folders: files of PyTorch's profiler (Kineto) of an FSDP2 run, one of each rank.

    json_stream   a large JSON file, an event at a time
    kineto        one file: what is needed of it, as a
    rank_file     of one rank
    program       minibatches, microbatches and FSDP2's marks, in the program's time
    attribution   whose a moment of a microbatch is
    activity      one rank's collectives and compute, and where they come from:
    on_cpu        gloo's calls and what lies between them
    on_gpu        kernels on streams
    ranks         the files of all ranks, beside each other
    clocks        one time for all of them
    spans         a rank's spans of the trace format
    lengths       what microbatches held, from a file of the user's
    ingest        all of it
    shares        where a rank's time went

docs/ingest.md says how to record such files, and which rules hold. Nothing here imports torch.
"""

from __future__ import annotations

from odcsim.foreign.ingest import IngestedRun, ingest
from odcsim.foreign.shares import RankShares, shares_of

__all__ = ["IngestedRun", "RankShares", "ingest", "shares_of"]
