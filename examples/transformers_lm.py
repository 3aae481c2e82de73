"""A Hugging Face causal language model, built from a tiny config, trained with on-demand communication.

    odcrt launch --nproc 2 examples/transformers_lm.py

Needs transformers. No weights are loaded: the model starts from random ones.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM

import odcrt


def main() -> None:
    """Train for some minibatches."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    mesh = init_device_mesh("cpu", (world_size,))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)

    odc = odcrt.on_demand(model)
    for step in range(6):
        losses = []
        with odc.minibatch():
            # The first rank has one sequence more than the others.
            for length in [24, 12, 9][: 3 if rank == 0 else 2]:
                first = torch.randint(0, 64, (1, 1), generator=generator)
                tokens = (first + torch.arange(length)) % 128
                loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
                losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step}: {len(losses)} sequences, loss {sum(losses) / len(losses):.3f}")
    odc.close()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
