"""The trace format: folders that hold what every rank of a run did, measured or simulated.

    spans       one thing that a rank did, and the line that says so
    info        what was run: the content of run.json
    section     values of a JSON object, checked as they are taken
    folder      writing and reading a folder
    simulated   from an engine's spans
    chrome      to a Chrome trace, for Perfetto

docs/trace_format.md describes the files. Times are seconds since the origin that all ranks of a run share.
"""

from __future__ import annotations

from odcsim.trace_format.chrome import to_chrome_trace
from odcsim.trace_format.folder import (
    RankTraceWriter,
    RecordedRun,
    TraceSizeWarning,
    case_folder,
    clear_run,
    find_runs,
    rank_file,
    read_run,
    read_run_info,
    run_digest,
    write_run,
    write_run_info,
)
from odcsim.trace_format.info import (
    TRACE_SCHEMA,
    ClockInfo,
    PlannedLengths,
    PulledPositions,
    RankMemory,
    RunInfo,
    planned_lengths,
    positions_pulled,
)
from odcsim.trace_format.simulated import simulated_spans_to_trace
from odcsim.trace_format.spans import SPAN_NAMES, TraceSpan

__all__ = [
    "SPAN_NAMES",
    "TRACE_SCHEMA",
    "ClockInfo",
    "PlannedLengths",
    "PulledPositions",
    "RankMemory",
    "RankTraceWriter",
    "RecordedRun",
    "RunInfo",
    "TraceSizeWarning",
    "TraceSpan",
    "case_folder",
    "clear_run",
    "find_runs",
    "planned_lengths",
    "positions_pulled",
    "rank_file",
    "read_run",
    "read_run_info",
    "run_digest",
    "simulated_spans_to_trace",
    "to_chrome_trace",
    "write_run",
    "write_run_info",
]
