"""Save a run with torch's distributed checkpoint, and go on at another world size.

    odcrt launch --nproc 2 examples/resume_dcp.py CHECKPOINT_FOLDER save
    odcrt launch --nproc 3 examples/resume_dcp.py CHECKPOINT_FOLDER resume

The checkpoint holds model, optimizer and the cursor of the data. It reshards the first two; the cursor counts samples
of the global order, so the next run goes on with exactly those that the first one has not seen.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import odcrt
from odcrt.data.sampler import BalancedBatchSampler

LENGTHS = [7 + (13 * sample) % 40 for sample in range(120)]
WIDTH = 16


def sequence(sample: int) -> torch.Tensor:
    """The tokens of a sample: the data set is made up as it goes."""
    return (torch.arange(LENGTHS[sample]) * (sample + 1)) % 32


def main() -> None:
    """Train on half of the data and save, or load and train on the rest."""
    folder, action = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 32))
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model[:2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = BalancedBatchSampler(
        LENGTHS, rank=rank, world_size=world_size, samples_per_minibatch=12, max_tokens=96, seed=1
    )

    if action == "resume":
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "sampler": sampler.state_dict()}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        sampler.load_state_dict(state["sampler"])

    odc = odcrt.on_demand(model)
    minibatches, seen = 0, []
    for minibatch in sampler:
        with odc.minibatch():
            for microbatch in minibatch:
                for sample in microbatch:
                    tokens = sequence(sample)
                    loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:], reduction="sum")
                    loss.backward()
                    seen.append(sample)
        optimizer.step()
        optimizer.zero_grad()
        minibatches += 1
        if action == "save" and minibatches == 5:
            break
    odc.close()

    everywhere: list[list[int]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everywhere, seen)
    if action == "save":
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "sampler": sampler.state_dict()}
        dcp.save(state, checkpoint_id=folder)
    if rank == 0:
        print(f"{action}: {minibatches} minibatches on {world_size} ranks")
        print("samples:", *sorted(sample for samples in everywhere for sample in samples))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
