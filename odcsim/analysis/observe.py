"""From a recorded run's spans to arrays."""

from __future__ import annotations

import numpy as np

from odcsim.analysis.observations import RunObservations
from odcsim.analysis.observed_checks import check_counts, check_meetings, check_tokens
from odcsim.analysis.rank_reader import RankReader, VisitPlaces
from odcsim.errors import InputError
from odcsim.schedule import decoder_visits
from odcsim.trace_format import RecordedRun, rank_file

__all__ = ["observe"]


def observe(run: RecordedRun) -> RunObservations:
    """Arrays from a run's spans.

    Raises:
        InputError: the run was not recorded on all ranks, has no compute, or holds other microbatches than it says.
    """
    info = run.info
    sync = info.case.get("sync")
    if sync not in {"fsdp", "odc"}:
        raise InputError("allowed: fsdp or odc", file=run.folder / "run.json", key="case.sync", value=sync)
    if info.recorded_ranks != info.world_size:
        raise InputError(
            f"only ranks 0 to {info.recorded_ranks - 1} of {info.world_size} were recorded; what a minibatch costs is "
            "known from all of them",
            file=run.folder / "run.json",
            key="recorded_ranks",
            value=info.recorded_ranks,
        )
    layers = _layers(run)
    visits = decoder_visits(layers)
    places = VisitPlaces(visits)
    ranks = [RankReader(places, info.window, spans) for spans in run.spans_of_ranks]
    for rank, reader in enumerate(ranks):
        if not np.isfinite(reader.end_s_N).all():
            minibatch = info.window[int(np.argmin(np.isfinite(reader.end_s_N)))]
            raise InputError(
                f"has no span of minibatch {minibatch}: the trace is cut", file=rank_file(run.folder, rank)
            )
    counts_ND = np.array([[rank.counts[n] for rank in ranks] for n in range(len(info.window))])
    check_counts(run, counts_ND)
    most = int(counts_ND.max(initial=0))
    if not any(rank.compute_s for rank in ranks):
        raise InputError("no rank has a span of compute (forward or backward): nothing can be learned", file=run.folder)
    shape = (len(info.window), info.world_size, most)
    tokens_NDM, squared_NDM = np.zeros(shape), np.zeros(shape)
    compute_s_NDMV = np.zeros((*shape, len(visits)))
    for d, reader in enumerate(ranks):
        for (n, m), (tokens, squared_tokens) in reader.loads.items():
            tokens_NDM[n, d, m], squared_NDM[n, d, m] = tokens, squared_tokens
        for (n, m, v), time_s in reader.compute_s.items():
            compute_s_NDMV[n, d, m, v] = time_s
    counted_NDM = np.arange(most) < counts_ND[:, :, None]
    first_s_ND = np.stack([rank.first_s_N for rank in ranks], axis=1)
    last_s_ND = np.stack([rank.last_s_N for rank in ranks], axis=1)
    # A rank without a microbatch waits from when the others begin.
    begun_s_N1 = np.where(counts_ND > 0, first_s_ND, np.inf).min(axis=1, keepdims=True)
    sits_out_ND = (counts_ND == 0) & np.isfinite(begun_s_N1)
    first_s_ND = np.where(sits_out_ND, begun_s_N1, first_s_ND)
    last_s_ND = np.where(sits_out_ND, begun_s_N1, last_s_ND)
    settling_s_ND = np.stack([rank.settling_s_N for rank in ranks], axis=1)
    settled_s_ND = np.stack([rank.settled_s_N for rank in ranks], axis=1)
    # What takes no time leaves no span: then ranks go on when they have met, under `fsdp` in their last collective.
    met_s_ND = last_s_ND if sync == "fsdp" else np.broadcast_to(last_s_ND.max(axis=1, keepdims=True), last_s_ND.shape)
    check_tokens(run, tokens_NDM)
    observed = RunObservations(
        run=run,
        sync=sync,
        visits=visits,
        counts_ND=counts_ND,
        tokens_NDM=tokens_NDM,
        squared_tokens_NDM=squared_NDM,
        # Where tokens are not known, every microbatch is taken to hold some.
        holds_samples_NDM=counted_NDM & ((tokens_NDM > 0) | (not tokens_NDM.any())),
        compute_s_NDMV=compute_s_NDMV,
        transfers_D=tuple(tuple(rank.transfers) for rank in ranks),
        start_s_N=np.min([rank.start_s_N for rank in ranks], axis=0),
        first_s_ND=first_s_ND,
        last_s_ND=last_s_ND,
        settling_s_ND=np.where(np.isfinite(settling_s_ND), settling_s_ND, met_s_ND),
        settled_s_ND=np.where(np.isfinite(settled_s_ND), settled_s_ND, met_s_ND),
        end_s_ND=np.stack([rank.end_s_N for rank in ranks], axis=1),
        publish_s_ND=np.stack([rank.durations_s["publish"] for rank in ranks], axis=1),
        settle_s_ND=np.stack([rank.durations_s["settle"] for rank in ranks], axis=1),
        optimizer_s_ND=np.stack([rank.durations_s["optimizer"] for rank in ranks], axis=1),
    )
    if sync == "odc":
        check_meetings(observed, published_s_ND=np.stack([rank.published_s_N for rank in ranks], axis=1))
    return observed


def _layers(run: RecordedRun) -> int:
    """Decoder blocks: what the scenario says, and else the highest unit seen."""
    model = run.info.scenario.get("model")
    layers = model.get("layers") if isinstance(model, dict) else None
    highest = max((span.unit for spans in run.spans_of_ranks for span in spans), default=0)
    if isinstance(layers, int):
        if highest > layers:
            raise InputError(
                f"a trace has a span of unit {highest}, but the scenario's model has blocks 1 to {layers}",
                file=run.folder / "run.json",
                key="scenario.model.layers",
                value=layers,
            )
        return layers
    return max(highest, 1)
