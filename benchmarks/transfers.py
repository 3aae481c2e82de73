"""One-sided transfers over shared memory against plain copies and additions, and against gloo, in one run.

Usage: python benchmarks/transfers.py [--ranks 2] [--megabytes 4 16 64] [--repeats 7]

Each line is a ratio of bandwidths (the best of several; the other ranks stand still meanwhile): a gather against a
copy of the same bytes inside one process, a scatter-accumulate against an addition, and both against gloo's collective
of the same unit. Needs torch.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from odcrt.transports import Region
from odcrt.transports.phases import Phase
from odcrt.transports.shm import ShmTransport


def best_s(function: Callable[[], object], repeats: int) -> float:
    """Shortest of several runs, in seconds, after one that does not count."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


class Unit:
    """A unit whose shard has `numel` elements, as one rank sees it."""

    def __init__(self, numel: int) -> None:
        self.transport = ShmTransport(deadline_s=60)
        regions = [Region("published", numel, torch.float32), Region("gradient", numel, torch.float32, locks=1)]
        self.transport.allocate(regions)
        ranks = self.transport.world_size
        self.shard = torch.ones(numel)
        self.gathered_Dn = torch.ones(ranks, numel)
        self.gradients_Dn = torch.ones(ranks, numel)
        self.peers = [rank for rank in range(ranks) if rank != self.transport.rank]

    def gather(self) -> None:
        """Read every peer's shard."""
        for owner in self.peers:
            self.transport.read(self.gathered_Dn[owner], "published", owner=owner)

    def copy(self) -> None:
        """Copy as much inside this process."""
        for owner in self.peers:
            self.gathered_Dn[owner].copy_(self.shard)

    def scatter_accumulate(self) -> None:
        """Add to every peer's accumulator."""
        for owner in self.peers:
            self.transport.accumulate(self.gradients_Dn[owner], "gradient", owner=owner, scale=0.5)

    def add(self) -> None:
        """Add as much inside this process."""
        for owner in self.peers:
            self.shard.add_(self.gradients_Dn[owner], alpha=0.5)

    def gloo_all_gather(self) -> None:
        """Gather by a collective."""
        dist.all_gather_into_tensor(self.gathered_Dn.view(-1), self.shard)

    def gloo_reduce_scatter(self) -> None:
        """Reduce by a collective."""
        dist.reduce_scatter_tensor(self.shard, self.gradients_Dn.view(-1))

    def alone_s(self, function: Callable[[], None], repeats: int) -> float:
        """The time of `function` on rank 0, the others standing still; infinite on the others."""
        self.transport.barrier(Phase.BETWEEN_MINIBATCHES)
        seconds = best_s(function, repeats) if self.transport.rank == 0 else float("inf")
        self.transport.barrier(Phase.BETWEEN_MINIBATCHES)
        return seconds


def measure(rank: int, ranks: int, megabytes: list[int], repeats: int, store: str) -> None:
    """One rank's part of the benchmark; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for size in megabytes:
        unit = Unit(size * 2**20 // 4)
        gather_s, copy_s = unit.alone_s(unit.gather, repeats), unit.alone_s(unit.copy, repeats)
        scatter_s, add_s = unit.alone_s(unit.scatter_accumulate, repeats), unit.alone_s(unit.add, repeats)
        dist.barrier()
        gloo_gather_s = best_s(unit.gloo_all_gather, repeats)
        gloo_reduce_s = best_s(unit.gloo_reduce_scatter, repeats)
        if rank == 0:
            moved_gb = (ranks - 1) * size * 2**20 / 1e9
            print(
                f"shard of {size:3d} MiB, {ranks} ranks: "
                f"gather {moved_gb / gather_s:4.1f} GB/s, {copy_s / gather_s:.2f}x a plain copy, "
                f"{gloo_gather_s / gather_s:.0f}x gloo; "
                f"scatter-accumulate {moved_gb / scatter_s:4.1f} GB/s, {add_s / scatter_s:.2f}x a plain add, "
                f"{gloo_reduce_s / scatter_s:.0f}x gloo",
                flush=True,
            )
        unit.transport.close()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="One-sided transfers against plain copies, additions and gloo.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[4, 16, 64], help="sizes of a shard, in MiB")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with TemporaryDirectory() as folder:
        rest = (arguments.ranks, arguments.megabytes, arguments.repeats, str(Path(folder) / "store"))
        mp.spawn(measure, args=rest, nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
