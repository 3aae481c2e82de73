"""A small FSDP2 training under PyTorch's profiler and, at the same time, under the project's own recorder.

`python tests/odcrt/profiled_training.py` records the pair of files of traces/profiler, and cuts them
down to what is needed: everything but operations and annotations is dropped, with arguments but for sizes, numbers of
processes, and names of this machine and its folders.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.distributed as dist
from ranks import run
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, schedule
from toy_models import Toy, draw, loss_of, mesh_of, seeded

from odcrt.fsdp.recording import watch_units
from odcrt.tracing.recorder import Recorder
from odcrt.workload.plain import PlainFsdp2

SKIPPED = 2  # minibatches before the profiler records
DATA = Path(__file__).resolve().parents[2] / "traces" / "profiler"


def profiled(
    folder,
    *,
    make=Toy,
    minibatches=2,
    microbatches=2,
    slow_ranks=(),
    slow_s=0.0,
    clipped=False,
    evaluated=False,
    reshards=True,
    **options,
):
    """Train, leave rank{r}.json.gz in a folder, and return what the recorder saw in the minibatches of the file.

    Args:
        folder: for the files.
        make: the model.
        minibatches: that the profiler records, after `SKIPPED` ones.
        microbatches: of each.
        slow_ranks: they sleep in the forward of every block, and before they clip.
        slow_s: for so long.
        clipped: whether norms of gradients are clipped, which is a collective beside FSDP2's.
        evaluated: whether a forward without backward follows each minibatch's last microbatch.
        reshards: whether blocks are gathered anew for backward.
        options: of the model.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = seeded(make, **options)
    for block in model.blocks:
        fully_shard(block, mesh=mesh_of(ranks), reshard_after_forward=reshards)
        if rank in slow_ranks:
            block.register_forward_pre_hook(lambda *_ignored: time.sleep(slow_s))
    fully_shard(model, mesh=mesh_of(ranks))
    optimizer = torch.optim.AdamW(model.parameters())
    window = range(SKIPPED, SKIPPED + minibatches)
    recorder = Recorder(None, rank=rank, window=window)
    handle = PlainFsdp2(model, recorder=recorder)
    watch_units(recorder, model, handle.units)
    generator = torch.Generator().manual_seed(rank)
    plan = schedule(wait=SKIPPED - 1, warmup=1, active=minibatches)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as profiler:
        for minibatch in range(window.stop):
            if minibatch in window:
                profiler.add_metadata("torch_version", torch.__version__)  # has no effect at other times
            recorder.begin_minibatch(minibatch)
            for microbatch in range(microbatches):
                recorder.begin_microbatch(microbatch)
                loss_of(model, draw(generator)).backward()
                recorder.end_microbatch()
            if evaluated:
                with torch.no_grad():
                    model(draw(generator))
                model.reshard()
            if clipped:
                time.sleep(slow_s if rank in slow_ranks else 0.0)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            start_s = recorder.now_s()
            optimizer.step()
            recorder.span("optimizer", -1, start_s, recorder.now_s())
            recorder.end_minibatch()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
    return [(span.name, span.unit, span.microbatch, span.start_s, span.end_s) for span in recorder.spans()]


def stripped(document):
    """A file without what is not needed."""
    kept = ("schemaVersion", "distributedInfo", "torch_version", "displayTimeUnit", "baseTimeNanoseconds")
    events = []
    for event in document["traceEvents"]:
        if event.get("cat") not in {"cpu_op", "user_annotation"}:
            continue
        slim = {key: event[key] for key in ("ph", "cat", "name", "tid", "ts", "dur")}
        if event["name"].startswith("c10d::"):
            slim["args"] = {key: event["args"][key] for key in ("Input Dims", "Input type")}
        events.append(slim)
    return {**{key: document[key] for key in kept}, "host_name": "host", "traceEvents": events}


def main():
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run(profiled, folder, slow_ranks=(1,), slow_s=0.01, clipped=True, timeout_s=100.0)
        for path in sorted(Path(folder).glob("*.json.gz")):
            document = stripped(json.loads(gzip.decompress(path.read_bytes())))
            text = json.dumps(document, separators=(",", ":"))
            (DATA / path.name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
