"""Results of runs made by hand, with spans of the recurrence engine: what reports are tested on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from odcsim.engines.recurrence import simulate
from odcsim.lengths.statistics import describe_lengths
from odcsim.results import CaseResult, Conservation, MemoryResult, RunResult, TimeFractions
from odcsim.schedule import Schedule, Work, decoder_visits

LAYERS = 28
CAPACITY_BYTES = 80.7e9


def _microbatch_tokens(lengths_NDS: np.ndarray, *, sorted_within_rank: bool, uneven: bool) -> np.ndarray:
    """Tokens of each microbatch, one sample each; `uneven` moves samples between ranks by greedy balancing."""
    if not uneven:
        return np.sort(lengths_NDS, axis=2)[:, :, ::-1] if sorted_within_rank else lengths_NDS
    minibatches, ranks, samples = lengths_NDS.shape
    tokens = np.zeros((minibatches, ranks, samples * 3))
    for minibatch in range(minibatches):
        loads, counts = np.zeros(ranks), np.zeros(ranks, dtype=int)
        for length in np.sort(lengths_NDS[minibatch].reshape(-1))[::-1]:
            rank = int(np.argmin(loads))
            tokens[minibatch, rank, counts[rank]] = length
            loads[rank] += length + length**2 / 40_000
            counts[rank] += 1
    return tokens[:, :, : int((tokens > 0).sum(axis=2).max())]


def _case(
    label: str, *, sync: str, tokens_NDM: np.ndarray, bound_s_N: np.ndarray, gather_s: float, record_spans: bool
) -> CaseResult:
    visits = decoder_visits(LAYERS)
    counts_ND = (tokens_NDM > 0).sum(axis=2)
    schedule = Schedule(
        sync=sync,
        overlap="prefetch",
        visits=visits,
        gather_s_V=np.array([gather_s if visit.gathers else 0.0 for visit in visits]),
        reduce_s_V=np.array([2 * gather_s if visit.reduces else 0.0 for visit in visits]),
        publish_s=0.02,
        settle_s=0.03,
        optimizer_s=0.06,
    )
    weights_V = np.array([1.0 if visit.phase == "forward" else 3.0 for visit in visits]) / (2 * len(visits))
    work = Work(
        counts_ND=counts_ND,
        factors_NDMF=np.stack([tokens_NDM**2, tokens_NDM], axis=-1),
        coefficients_FV=np.vstack([1.94e-9 * weights_V, 8.2e-5 * weights_V]),
    )
    outcome = simulate(work, schedule, recorded_ranks=tokens_NDM.shape[1] if record_spans else 0)
    totals = np.array(
        [
            array.sum()
            for array in (
                outcome.compute_s_ND,
                outcome.exposed_communication_s_ND,
                outcome.synchronization_s_ND,
                outcome.optimizer_s_ND,
                outcome.other_s_ND,
            )
        ]
    )
    parts = {
        "parameters": 0.89e9,
        "gradients": 0.89e9,
        "optimizer_state": 1.78e9,
        "gathered_units": 1.1e9,
        "unsharded_gradients": 0.28e9,
        "activations": 44e9,
        "logits": 0.0,
    }
    if sync == "odc":
        parts |= {"published_copy": 0.44e9, "accumulator": 0.89e9}
    return CaseResult(
        label=label,
        sync=sync,
        policy="lb-micro",
        overlap="prefetch",
        pad=False,
        minibatch_s_N=outcome.minibatch_s_N,
        lower_bound_s_N=bound_s_N,
        fractions=TimeFractions(*(totals / totals.sum()).tolist()),
        conservation=Conservation(
            samples=int(counts_ND.sum()),
            dropped_samples=0,
            tokens=int(tokens_NDM.sum()),
            dropped_tokens=0,
            truncated_tokens=0,
        ),
        mean_microbatches_per_rank=float(counts_ND.mean()),
        padding_share=0.0,
        mfu=0.31,
        memory=MemoryResult(parts, CAPACITY_BYTES, int(tokens_NDM.max())),
        speedup=1.0,
        speedup_ci95=None,
        ranks=tokens_NDM.shape[1],
        spans=outcome.spans,
    )


def scenario_document() -> dict[str, Any]:
    """A resolved scenario."""
    return {
        "name": "sample",
        "model": {"name": "qwen2.5-1.5b", "layers": LAYERS, "hidden": 1536, "total_parameters": 1_777_088_000},
        "cluster": {
            "gpu": {
                "name": "a100-80g-sxm",
                "peak_flops_per_s": 312e12,
                "memory_bytes": 85.9e9,
                "intra_node_bandwidth_bytes_per_s": 300e9,
                "intra_node_latency_s": 3.4e-6,
                "sources": {"peak_flops_per_s": "NVIDIA A100 datasheet", "memory_bytes": "NVIDIA A100 datasheet"},
            },
            "gpus_per_node": 8,
            "nodes": 1,
            "contention": False,
        },
        "workload": {
            "lengths": {
                "trace": "lengths.csv",
                "source": {
                    "name": "synthetic_longalign_10k_qwen",
                    "synthetic": True,
                    "licence": "none needed (synthetic numbers)",
                },
            },
            "samples_per_rank": 4,
            "max_tokens": 65_536,
            "oversize": "error",
            "minibatches": 40,
            "seed": 0,
        },
        "compute": {"fitted": {"quadratic": 1.982122, "linear": 2.611821, "constant": 0.666759, "per_tokens": 32_000}},
        "training": {"recompute": "full", "fused_loss": True, "param_dtype": "bf16", "optimizer": "adamw"},
        "on_demand": {"gather_dtype": "param", "minibatch_overhead": 0.0},
        "overlap": "prefetch",
        "cases": [{"sync": "fsdp", "policy": "lb-micro"}, {"sync": "odc", "policy": "lb-mini"}],
    }


def sample_result(
    *, minibatches: int = 40, ranks: int = 8, samples: int = 4, record_spans: bool = True, gather_s: float = 0.004
) -> RunResult:
    """Three cases on LongAlign-like lengths: collectives, one-sided with the same plan, one-sided with a better one."""
    generator = np.random.Generator(np.random.PCG64(7))
    drawn = generator.lognormal(mean=9.5, sigma=0.65, size=(minibatches, ranks, samples))
    lengths_NDS = np.clip(drawn, 500, 65_536).astype(np.int64)
    lengths = lengths_NDS.astype(np.float64)
    bound_s_N = (1.94e-9 * lengths**2 + 8.2e-5 * lengths).sum(axis=(1, 2)) / ranks + 0.06
    sorted_NDM = _microbatch_tokens(lengths, sorted_within_rank=True, uneven=False)
    cases = [
        _case(
            label,
            sync=sync,
            tokens_NDM=tokens,
            bound_s_N=bound_s_N,
            gather_s=gather_s,
            record_spans=record_spans,
        )
        for label, sync, tokens in (
            ("FSDP lb-micro", "fsdp", sorted_NDM),
            ("ODC lb-micro", "odc", sorted_NDM),
            ("ODC lb-mini", "odc", _microbatch_tokens(lengths, sorted_within_rank=True, uneven=True)),
        )
    ]
    baseline_s_N = cases[0].minibatch_s_N
    return RunResult(
        name="sample",
        scenario=scenario_document(),
        engine="recurrence",
        lengths=dict(describe_lengths(lengths_NDS)),
        cases=tuple(_with_speedup(case, baseline_s_N) for case in cases),
        sampled_lengths=lengths_NDS.reshape(-1),
    )


def _with_speedup(case: CaseResult, baseline_s_N: np.ndarray) -> CaseResult:
    speedup = float(baseline_s_N.mean() / case.minibatch_s_N.mean())
    around = (0.97, 1.02) if case.minibatch_s_N is not baseline_s_N else (1.0, 1.0)
    interval = None if len(baseline_s_N) < 2 else (speedup * around[0], speedup * around[1])
    return dataclasses.replace(case, speedup=speedup, speedup_ci95=interval)


def with_case(result: RunResult, position: int, **changes: object) -> RunResult:
    """The result with one of its cases changed."""
    cases = list(result.cases)
    cases[position] = dataclasses.replace(cases[position], **changes)
    return dataclasses.replace(result, cases=tuple(cases))


def over_memory(case: CaseResult, *, over_bytes: float, advice: str = "") -> MemoryResult:
    """The case's memory with activations that exceed the capacity by `over_bytes`."""
    parts = dict(case.memory.parts_bytes)
    parts["activations"] += case.memory.capacity_bytes + over_bytes - sum(parts.values())
    return dataclasses.replace(case.memory, parts_bytes=parts, advice=advice)
