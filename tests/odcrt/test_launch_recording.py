"""`odcrt launch --record DIR SCRIPT.py`: traces of a user's own loop, which does not know of it."""

from __future__ import annotations

import pytest
from launched import odcrt

from odcrt.tracing.versions import available_processors
from odcrt.tracing.window import parse_window
from odcsim.errors import InputError
from odcsim.trace_format import read_run

pytestmark = pytest.mark.timeout(60)

LOOP = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import odcrt

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return hidden.sum()


def train(handle_of, counts):
    torch.manual_seed(0)
    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = handle_of(model)
    for _ in range(4):
        with handle.minibatch():
            for microbatch in range(counts[rank]):
                model(torch.arange(5 + microbatch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return handle


first = train(odcrt.on_demand, [1, 3])
second = train(odcrt.per_unit, [2, 2])
second.close()
dist.barrier()
dist.destroy_process_group()
# The first one is never closed.
"""


def test_a_script_is_recorded_without_knowing(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "loop.py").write_text(LOOP)
    run = odcrt("launch", "--nproc", 2, "--record", "trace", "--window", "1:2", "loop.py", folder=tmp_path)
    assert run.code == 0, run.err
    assert run.err == "odcrt: trace: trace\n"

    on_demand = read_run(tmp_path / "trace")
    assert on_demand.info.case == {"sync": "odc", "policy": "script", "transport": "shm", "compute": "real"}
    assert (on_demand.info.world_size, on_demand.info.window) == (2, range(1, 3))
    assert on_demand.info.processors == (available_processors(),) * 2
    assert on_demand.info.memory == ()
    for rank, microbatches in enumerate([1, 3]):
        spans = on_demand.spans_of_ranks[rank]
        names = [span.name for span in spans]
        # Two minibatches; of each microbatch the root is gathered once, both blocks twice, and all are reduced once.
        assert names.count("gather") == 2 * microbatches * 5
        assert names.count("scatter_accumulate") == 2 * microbatches * 3
        for name in ("publish", "settle", "optimizer"):
            assert names.count(name) == 2
        assert {"forward", "backward"} <= set(names)
        assert {span.microbatch for span in spans} == set(range(-1, microbatches))
        assert {(span.microbatch, span.tokens) for span in spans if span.name == "gather"} == {
            (microbatch, 5 + microbatch) for microbatch in range(microbatches)
        }
        optimizer = [span for span in spans if span.name == "optimizer"]
        assert [(span.minibatch, span.microbatch) for span in optimizer] == [(1, -1), (2, -1)]

    per_unit = read_run(tmp_path / "trace" / "handle-2")
    assert (per_unit.info.case["sync"], per_unit.info.case["transport"]) == ("fsdp", "collective")
    names = [span.name for span in per_unit.spans_of_ranks[0]]
    assert names.count("gather") == 2 * 2 * 5


def test_a_script_that_records_nothing_is_told_so(tmp_path):
    (tmp_path / "nothing.py").write_text("")
    run = odcrt("launch", "--nproc", 1, "--record", "trace", "nothing.py", folder=tmp_path)
    assert run.code == 0
    assert "odcrt: warning: --record has no effect: no minibatch of the window went through a handle" in run.err


def test_windows():
    assert parse_window("2:10", key="--window") == range(2, 12)
    for text in ("", "2", ":3", "2:", "-1:3", "2:0", "a:b", "1:2:3", "٣:1", "1:9999999999"):
        with pytest.raises(InputError, match="allowed: FIRST:COUNT"):
            parse_window(text, key="--window")
