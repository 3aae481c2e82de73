"""What a handle refuses, and what it tells: misuse ends with an error that says what to do, on all ranks alike."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from toy_models import Toy, draw, local, loss_of, mesh_of, seeded, shard, sharded  # noqa: E402

import odcrt  # noqa: E402
from odcrt.errors import OutsideMinibatch  # noqa: E402
from odcrt.fsdp.handle import _count_tokens  # noqa: E402
from odcrt.transports.phases import Phase  # noqa: E402
from odcsim.errors import InputError, RunError  # noqa: E402

pytestmark = pytest.mark.timeout(30)

DEADLINE_S = 10.0


def step(odc, model, *, microbatches=1):
    with odc.minibatch():
        for number in range(microbatches):
            loss_of(model, draw(torch.Generator().manual_seed(number))).backward()


def raised_by(error_type, action, *args):
    """The text of the error that an action must raise."""
    with pytest.raises(error_type) as caught:
        action(*args)
    return str(caught.value)


# --- models that cannot be served ---


def refuse_models():
    ranks = dist.get_world_size()
    mesh = mesh_of(ranks)
    found = {"plain": raised_by(InputError, odcrt.on_demand, Toy())}

    two_dimensional = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("replicas", "shards"))
    found["replicas"] = raised_by(InputError, odcrt.on_demand, shard(Toy(), mesh=two_dimensional))

    left_out = Toy()
    ignored = {left_out.head.weight}
    for block in left_out.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(left_out, mesh=mesh, ignored_params=ignored)
    found["left out"] = raised_by(InputError, odcrt.on_demand, left_out)

    inner_alone = Toy()
    fully_shard(inner_alone.blocks[0], mesh=mesh)
    found["root not sharded"] = raised_by(InputError, odcrt.on_demand, inner_alone)

    hooked = sharded(ranks)
    hooked.set_all_reduce_hook(lambda _: None)
    found["all-reduce hook"] = raised_by(InputError, odcrt.on_demand, hooked)

    stepping = sharded(ranks)
    stepping.head.weight.register_post_accumulate_grad_hook(lambda _: None)
    found["optimizer in backward"] = raised_by(InputError, odcrt.on_demand, stepping)

    with torch.device("meta"):
        elsewhere = shard(Toy(), mesh=mesh)
    found["elsewhere"] = raised_by(InputError, odcrt.on_demand, elsewhere)
    found["elsewhere, per unit"] = raised_by(InputError, odcrt.per_unit, elsewhere)

    found["nothing"] = raised_by(InputError, odcrt.on_demand, fully_shard(nn.ReLU(), mesh=mesh))
    found["transport"] = raised_by(InputError, lambda: odcrt.on_demand(sharded(ranks), transport="nvlink"))
    for handle in (odcrt.on_demand, odcrt.per_unit):
        taken = sharded(ranks)
        first = handle(taken, deadline_s=DEADLINE_S)
        found[f"taken by {handle.__name__}"] = raised_by(InputError, odcrt.on_demand, taken)
        found[f"taken by {handle.__name__}, per unit"] = raised_by(InputError, odcrt.per_unit, taken)
        first.close()
        odcrt.on_demand(taken, deadline_s=DEADLINE_S).close()
    return found


def test_models_that_cannot_be_served_are_refused_in_words():
    first, second = run(refuse_models)
    assert first == second
    for key, text in {
        "plain": "call fully_shard on its blocks",
        "replicas": "Shard(0) on a 1-D mesh (no HSDP, no tensor parallelism)",
        "left out": "unit root has a parameter that is not sharded",
        "root not sharded": "call fully_shard on its blocks, and then on the model itself",
        "all-reduce hook": "unit root has an all-reduce hook",
        "optimizer in backward": "unit root has a parameter with a post-accumulate-grad hook",
        "elsewhere": "unit root has a parameter on device meta; this transport serves models on the CPU",
        "elsewhere, per unit": "unit root has a parameter on device meta",
        "nothing": "the model has no parameters",
        "transport": "allowed: shm",
        "taken by on_demand": "under another handle already; close() that one first",
        "taken by on_demand, per unit": "under another handle already",
        "taken by per_unit": "under another handle already",
        "taken by per_unit, per unit": "under another handle already",
    }.items():
        assert text in first[key], key
        assert "\n" not in first[key]


def serve_half_of_the_ranks():
    """A model on two of four ranks: refused among all, served among its own."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = DeviceMesh.from_group(groups[rank // 2], "cpu")
    model = shard(seeded(Toy), mesh=mesh)
    text = raised_by(InputError, odcrt.on_demand, model)
    odc = odcrt.on_demand(model, group=groups[rank // 2], deadline_s=DEADLINE_S)
    with odc.minibatch():
        for number in range(1 + rank):
            loss_of(model, draw(torch.Generator().manual_seed(number))).backward()
    odc.close()
    return text, odc.counters["barriers"]


def test_a_model_on_some_ranks_is_served_among_those():
    for rank, (text, barriers) in enumerate(run(serve_half_of_the_ranks, ranks=4)):
        own = [0, 1] if rank < 2 else [2, 3]
        assert text.startswith(
            f"the model is sharded over ranks {own}, and communication is asked for among ranks [0, "
        )
        assert barriers == 2


def disagree():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(ranks, blocks=3 if rank == 1 else 2)
    return raised_by(RunError, odcrt.on_demand, model)


def test_ranks_with_different_models_all_refuse():
    found = run(disagree, ranks=3)
    assert [text[:40] for text in found] == [
        "rank 1 allocates other regions than rank 0"[:40],
        "rank 0 allocates other regions than rank 1"[:40],
        "rank 1 allocates other regions than rank 2"[:40],
    ]


# --- wrong use ---


def misuse():
    """Wrong calls that leave the handle as it was: afterwards it works."""
    ranks = dist.get_world_size()
    model, reference = sharded(ranks), sharded(ranks)
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    tokens = draw(torch.Generator().manual_seed(dist.get_rank()))
    found = [raised_by(OutsideMinibatch, model, tokens)]
    with torch.no_grad():
        found.append(raised_by(OutsideMinibatch, model, tokens))
    with odc.minibatch():
        loss_of(model, tokens).backward()
        nested = odc.minibatch()
        found += [raised_by(RuntimeError, nested.__enter__), raised_by(RuntimeError, odc.close)]
    loss_of(reference, tokens).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(local(ours.grad), local(theirs.grad), rtol=1e-5, atol=1e-6)
    odc.close()
    found.append(raised_by(RuntimeError, odc.minibatch().__enter__))
    return found


def test_wrong_calls_are_refused_and_leave_everything_as_it_was():
    for outside, evaluation, nested, closing, closed in run(misuse):
        assert "outside of `with odc.minibatch():`" in outside
        assert "evaluation needs it as well" in outside, "noticed before FSDP2 has begun"
        assert evaluation == outside
        assert "minibatch() inside minibatch()" in nested
        assert "close() inside minibatch()" in closing
        assert "after close()" in closed


def install_after_evaluation(handle):
    """FSDP2 leaves the root gathered after a forward without backward; the handle sees its shard all the same."""
    model, reference = sharded(dist.get_world_size()), seeded(Toy)
    tokens = draw(torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(tokens)
    odc = (odcrt.on_demand if handle == "on demand" else odcrt.per_unit)(model, deadline_s=DEADLINE_S)
    with odc.minibatch(), torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens))
    odc.close()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens))


@pytest.mark.parametrize("handle", ["on demand", "per unit"])
def test_a_handle_comes_after_an_evaluation(handle):
    run(install_after_evaluation, handle)


def run_a_block_by_itself():
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    text = raised_by(OutsideMinibatch, model.blocks[0], torch.ones(1, 5))
    odc.close()
    return text


def test_a_block_alone_is_outside_as_well():
    for text in run(run_a_block_by_itself):
        assert text.startswith("unit blocks.0 was used outside")


# --- what must not change ---


def tamper(what):
    """Something that a rank must not do, in the second minibatch; or, without a rank's doing, in shared memory."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(ranks)
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    step(odc, model)
    view = odc._exchange.transport.view

    def again():
        with odc.minibatch():
            if what == "publication" and rank == 0:
                view("published_sequence")[1] -= 1
            if what == "accumulator" and rank == 0:
                view("open_sequence")[1] += 1
            if what == "parameters":
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(1.0)
            # Nobody has begun before all is done.
            odc._exchange.transport.barrier(Phase.PUBLISH)
            loss_of(model, draw(torch.Generator().manual_seed(0))).backward()

    # The rank that reads is the one to notice; rank 0 learns of it from the others.
    return raised_by(RunError, again)


def test_parameters_of_another_minibatch_are_not_read():
    first, second = run(tamper, "publication")
    assert "published_sequence of unit blocks.0 on rank 0 is of minibatch 0, not 1" in second
    assert "rank 1 failed" in first
    assert "StaleRead" in first


def test_gradients_are_not_added_to_those_of_another_minibatch():
    found = run(tamper, "accumulator")
    assert any("open_sequence of unit blocks.0 on rank 0 is of minibatch 2, not 1" in text for text in found)


def test_parameters_that_change_inside_a_minibatch_are_noticed():
    found = run(tamper, "parameters")
    assert any("parameters must not change inside minibatch()" in text for text in found)


def read_while_publishing():
    """A shard that its owner is just writing belongs to no minibatch."""
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    step(odc, model)

    def again():
        with odc.minibatch():
            odc._exchange.transport.view("published_sequence")[:] *= -1
            odc._exchange.transport.barrier(Phase.PUBLISH)
            loss_of(model, draw(None)).backward()

    return raised_by(RunError, again)


def test_a_shard_that_is_being_written_is_not_read():
    assert any("published_sequence of unit root on rank" in text for text in run(read_while_publishing))


def step_inside(minibatches_before):
    """The optimizer steps before the last microbatch, for once; in the first minibatches that is noticed at once."""
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(minibatches_before):
        step(odc, model)

    def once():
        for _ in range(3):
            with odc.minibatch():
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter).add_(1.0)
                optimizer.step()
                loss_of(model, draw(torch.Generator().manual_seed(0))).backward()

    return raised_by(RunError, once)


@pytest.mark.parametrize("minibatches_before", [0, 1, 7])
def test_a_step_inside_a_minibatch_is_noticed(minibatches_before):
    """After the first minibatches units are compared in turns: it may take as many minibatches as there are units."""
    found = run(step_inside, minibatches_before)
    assert any("must not change inside minibatch()" in text for text in found)


def thaw():
    """A frozen parameter is made trainable under the handle."""
    model = seeded(Toy)
    model.blocks[0].up.weight.requires_grad_(requires_grad=False)
    shard(model, mesh=mesh_of(dist.get_world_size()))
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    step(odc, model)
    model.blocks[0].up.weight.requires_grad_(requires_grad=True)
    return raised_by(RunError, step, odc, model)


def test_parameters_that_become_trainable_are_noticed():
    for text in run(thaw):
        assert "unit blocks.0: FSDP2 has reduced gradients of parameters that did not require any" in text
        assert "close() it before requires_grad changes" in text


def freeze_and_thaw_between_handles():
    model, reference = sharded(dist.get_world_size()), sharded(dist.get_world_size())
    for trainable in (True, False, True):
        for each in (model, reference):
            each.blocks[0].up.weight.requires_grad_(requires_grad=trainable)
            each.zero_grad()
        odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
        step(odc, model)
        odc.close()
        loss_of(reference, draw(torch.Generator().manual_seed(0))).backward()
        for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), name
            if ours.grad is not None:
                torch.testing.assert_close(local(ours.grad), local(theirs.grad), rtol=1e-5, atol=1e-6)


def test_another_handle_serves_what_is_trainable_then():
    run(freeze_and_thaw_between_handles)


def freeze_under_the_handle():
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    step(odc, model)
    model.zero_grad()
    model.blocks[0].requires_grad_(requires_grad=False)
    step(odc, model)
    odc.close()
    return all(p.grad is None for p in model.blocks[0].parameters()), model.head.weight.grad is not None


def test_parameters_may_be_frozen_under_a_handle():
    assert run(freeze_under_the_handle) == [(True, True)] * 2


def reshard_to_some_ranks(handle):
    """`reshard_after_forward=2` of four ranks: backward gathers among two, of larger shards."""
    model = shard(seeded(Toy), mesh=mesh_of(4), reshard_after_forward=2)
    odc = (odcrt.on_demand if handle == "on demand" else odcrt.per_unit)(model, deadline_s=DEADLINE_S)
    return raised_by(RunError, step, odc, model)


@pytest.mark.parametrize("handle", ["on demand", "per unit"])
def test_shards_over_some_of_the_ranks_are_refused(handle):
    for text in run(reshard_to_some_ranks, handle, ranks=4):
        assert "a transfer among 2 of 4 ranks" in text
        assert "reshard_after_forward must be True or False" in text


# --- right use ---


def be_alone(handle):
    """A world of one rank has nobody to talk to; FSDP2 itself does not communicate then."""
    model, reference = sharded(1), seeded(Toy)
    odc = (odcrt.on_demand if handle == "on demand" else odcrt.per_unit)(model)
    for _ in range(2):
        step(odc, model, microbatches=2)
    for number in (0, 1, 0, 1):
        loss_of(reference, draw(torch.Generator().manual_seed(number))).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(local(ours.grad), theirs.grad, rtol=1e-5, atol=1e-6)
    odc.close()
    return odc.counters


@pytest.mark.parametrize("handle", ["on demand", "per unit"])
def test_one_rank_alone_works(handle):
    assert run(be_alone, handle, ranks=1) == [{"transfers": 0, "barriers": 0}]


def keep_gradients(handle):
    """Gradients that the user keeps are the user's: what comes later does not write into their memory."""
    model = sharded(dist.get_world_size())
    odc = (odcrt.on_demand if handle == "on demand" else odcrt.per_unit)(model, deadline_s=DEADLINE_S)
    kept = []
    for minibatch in range(3):
        with odc.minibatch():
            loss_of(model, draw(torch.Generator().manual_seed(minibatch))).backward()
        gradients = [local(p.grad).detach() for p in model.parameters() if p.grad is not None]
        kept.append((gradients, [gradient.clone() for gradient in gradients]))
        model.zero_grad()
    for gradients, copies in kept:
        for gradient, copy in zip(gradients, copies, strict=True):
            assert torch.equal(gradient, copy)
    odc.close()


@pytest.mark.parametrize("handle", ["on demand", "per unit"])
def test_gradients_belong_to_the_user(handle):
    run(keep_gradients, handle)


def look_inside(handle):
    """Bytes of a rank's gradients after each microbatch and at the end, and of its shard of what these are of."""
    model = sharded(dist.get_world_size())
    odc = (odcrt.on_demand if handle == "on demand" else odcrt.per_unit)(model, deadline_s=DEADLINE_S)

    def gradient_bytes():
        return sum(local(p.grad).nbytes for p in model.parameters() if p.grad is not None)

    seen = []
    with odc.minibatch():
        for number in range(2):
            loss_of(model, draw(torch.Generator().manual_seed(number))).backward()
            seen.append(gradient_bytes())
    seen.append(gradient_bytes())
    odc.close()
    return seen, sum(local(p).nbytes for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("handle", ["on demand", "per unit"])
def test_gradients_are_held_as_the_formula_of_memory_has_it(handle):
    """Per unit from the first microbatch on; on demand they are in the accumulator alone until settle."""
    for seen, shard_bytes in run(look_inside, handle):
        inside = 0 if handle == "on demand" else shard_bytes
        assert seen == [inside, inside, shard_bytes]
        assert shard_bytes > 0


def install_often(handle):
    """Descriptors and mappings of this process before the first handle and after the last."""
    install = odcrt.on_demand if handle == "on demand" else odcrt.per_unit
    model = sharded(dist.get_world_size())
    held = []
    for _ in range(6):
        odc = install(model, deadline_s=DEADLINE_S)
        step(odc, model)
        odc.close()
        del odc
        gc.collect()
        held.append((len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("odcrt")))
    return held


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="not Linux")
@pytest.mark.parametrize("handle", ["on demand", "per unit"])
def test_closed_handles_leave_nothing_open(handle):
    for held in run(install_often, handle):
        assert held == [(held[0][0], 0)] * 6


def compute_with_nan():
    """A parameter that is not a number equals itself, and reaches the loss and the gradients."""
    model = sharded(dist.get_world_size())
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    for _ in range(2):
        step(odc, model)
    assert local(model.embedding.weight.grad).isnan().any()
    odc.close()


def test_what_is_not_a_number_is_no_change():
    run(compute_with_nan)


@dataclass
class Packed:
    tokens: object
    weights: object


@pytest.mark.parametrize(
    ("inputs", "tokens"),
    [
        ((torch.zeros(2, 3, dtype=torch.int64),), 6),
        ((torch.zeros(2, 3, dtype=torch.int64), torch.zeros(7, dtype=torch.int32)), 7),
        ((Packed(torch.zeros(1, 9, dtype=torch.int64), torch.zeros(20)),), 9),
        ((torch.zeros(4, 4),), -1),
        ((torch.zeros(4, 4), None, "text", 5), -1),
        ((), -1),
    ],
)
def test_tokens_of_a_microbatch_are_counted_in_its_inputs(inputs, tokens):
    assert _count_tokens(inputs) == tokens


def train_two_models():
    """A teacher and a student, say: two handles at once, one minibatch inside the other's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    models, references = [sharded(ranks, seed=seed) for seed in (1, 2)], [sharded(ranks, seed=seed) for seed in (1, 2)]
    first, second = (odcrt.on_demand(model, deadline_s=DEADLINE_S) for model in models)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        data = draw(generator)
        with first.minibatch(), second.minibatch():
            losses = [loss_of(model, data) for model in models]
            (losses[0] * losses[1]).backward()
        losses = [loss_of(model, data) for model in references]
        (losses[0] * losses[1]).backward()
        for ours, theirs in zip(models, references, strict=True):
            for (name, left), right in zip(ours.named_parameters(), theirs.parameters(), strict=True):
                if right.grad is not None:
                    torch.testing.assert_close(
                        local(left.grad),
                        local(right.grad),
                        rtol=1e-4,
                        atol=1e-5,
                        msg=lambda t, name=name: name + t,
                    )
    first.close()
    step(second, models[1])
    second.close()


def test_two_models_have_handles_at_once():
    run(train_two_models)


# --- per unit ---


def meet_unequal(counts):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(ranks)
    fsdp = odcrt.per_unit(model, deadline_s=DEADLINE_S)
    with fsdp.minibatch(microbatches=2):
        for number in range(2):
            loss_of(model, draw(torch.Generator().manual_seed(number))).backward()
    before = fsdp.counters
    text = raised_by(InputError, fsdp.minibatch(microbatches=counts[rank]).__enter__)
    assert fsdp.counters == before, "refused before the first forward"
    with fsdp.minibatch(microbatches=1):
        loss_of(model, draw(torch.Generator().manual_seed(0))).backward()
    fsdp.close()
    return text


@pytest.mark.parametrize("counts", [(3, 2, 3), (0, 1, 1), (5, 0, 7)])
def test_unequal_counts_are_refused_on_all_ranks_with_the_counts(counts):
    texts = run(meet_unequal, counts, ranks=3)
    assert len(set(texts)) == 1
    assert texts[0].startswith(f"minibatch 1: {list(counts)}: microbatches per rank")


def meet_elsewhere():
    """Rank 1 leaves a block out, without telling how many microbatches it has."""
    model = sharded(dist.get_world_size())
    fsdp = odcrt.per_unit(model, deadline_s=DEADLINE_S)

    def microbatch():
        with fsdp.minibatch():
            loss_of(model, draw(None), path=[1] if dist.get_rank() == 1 else None).backward()

    return raised_by(RunError, microbatch)


def test_ranks_that_meet_for_different_units_are_named():
    found = run(meet_elsewhere, ranks=3)
    told = "rank 0: gather of unit 1, rank 1: gather of unit 2, rank 2: gather of unit 1"
    assert any(f"ranks meet for different collectives ({told})" in text for text in found)
    assert all("ranks meet for different collectives" in text for text in found), (
        "reported by others, if not met oneself"
    )


def meet_in_evaluation():
    """Per unit, ranks in step may run the model outside of a minibatch as well."""
    model, reference = sharded(dist.get_world_size()), seeded(Toy)
    fsdp = odcrt.per_unit(model, deadline_s=DEADLINE_S)
    tokens = draw(torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens))
    fsdp.close()


def test_ranks_in_step_may_evaluate_outside_of_a_minibatch():
    run(meet_in_evaluation)
