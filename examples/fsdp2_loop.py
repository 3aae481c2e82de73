"""A plain FSDP2 training loop with on-demand communication: three lines changed, each marked with `odcrt`.

    odcrt launch --nproc 2 examples/fsdp2_loop.py
    torchrun --nproc-per-node 2 examples/fsdp2_loop.py

Ranks run different numbers of microbatches, which FSDP2 alone does not survive.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import odcrt


class Block(nn.Module):
    """A residual feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add what the block makes of its input."""
        result: torch.Tensor = hidden + self.inner(hidden)
        return result


class Model(nn.Module):
    """Predicts the next token from the current one."""

    def __init__(self, vocab: int = 64, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    """Train for some minibatches."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model()
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)

    odc = odcrt.on_demand(model)  # odcrt: 1 of 3
    for step in range(10):
        losses = []
        with odc.minibatch():  # odcrt: 2 of 3
            for _ in range(2 + (rank + step) % 2):
                tokens = torch.randint(0, 64, (4, 16), generator=generator)
                following = (tokens + 1) % 64
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
                loss.backward()
                losses.append(loss.item())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: {len(losses)} microbatches, loss {sum(losses) / len(losses):.3f}, norm {norm:.3f}")
    odc.close()  # odcrt: 3 of 3

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
