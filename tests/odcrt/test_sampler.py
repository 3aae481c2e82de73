"""The sampler: nothing lost, nothing twice, the simulator's plans, and a cursor that outlives a change of ranks."""

from __future__ import annotations

import json
import math
import warnings
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from odcrt.data.checks import whole_number
from odcrt.data.sampler import DEFAULT_COST, BalancedBatchSampler, SamplerWarning
from odcsim.costs.token_cost import TokenCost
from odcsim.drop_in.inputs import whole_number as whole_number_for_plans
from odcsim.errors import InputError, PolicyError, UnknownNameError
from odcsim.lengths import LengthSpec, load_source, read_trace
from odcsim.policies import find_policy, plan_minibatch, policy_names

COST = TokenCost(quadratic=1e-6, linear=1e-3, constant=0.1)


def sampler_of(lengths, *, rank=0, world_size=1, **settings_):
    if "samples_per_rank" not in settings_:
        settings_.setdefault("samples_per_minibatch", 4)
    settings_.setdefault("max_tokens", 1000)
    return BalancedBatchSampler(lengths, rank=rank, world_size=world_size, **settings_)


def samplers_of(lengths, *, world_size, **settings_):
    return [sampler_of(lengths, rank=rank, world_size=world_size, **settings_) for rank in range(world_size)]


def flat(microbatches):
    return list(chain.from_iterable(microbatches))


def seen_by_all(samplers):
    """Every sample of the rest of an epoch, minibatch by minibatch, over all ranks."""
    return [sorted(chain.from_iterable(map(flat, ranks))) for ranks in zip(*samplers, strict=True)]


LENGTHS = np.random.default_rng(7).integers(1, 900, 50).tolist()
any_lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)
POLICIES = [name for name in policy_names() if not find_policy(name).is_pulled]
any_policy = st.sampled_from(POLICIES)


@settings(max_examples=60, deadline=None)
@given(lengths=any_lengths, ranks=st.integers(1, 5), size=st.integers(1, 17), policy=any_policy, shuffle=st.booleans())
def test_an_epoch_runs_every_sample_once(lengths, ranks, size, policy, shuffle):
    """verl#4152, NeMo-RL#648: counts that nothing divides; DeepSpeed#2223, pytorch#64683: the end of an epoch."""
    how = {"samples_per_minibatch": size, "max_tokens": 60, "policy": policy, "shuffle": shuffle}
    samplers = samplers_of(lengths, world_size=ranks, **how)
    for _ in range(2):
        assert len(samplers[0]) == math.ceil(len(lengths) / size)
        minibatches = seen_by_all(samplers)
        assert sorted(chain.from_iterable(minibatches)) == list(range(len(lengths)))
        # The partial last minibatch is exact.
        sizes = [len(minibatch) for minibatch in minibatches]
        assert sizes == [size] * (len(lengths) // size) + ([len(lengths) % size] if len(lengths) % size else [])
    counted = samplers[0].conservation()
    assert (counted.samples, counted.tokens) == (2 * len(lengths), 2 * sum(lengths))
    assert (counted.run_samples, counted.run_tokens) == (counted.samples, counted.tokens)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    ranks=st.integers(1, 4),
    policy=any_policy,
    oversize=st.sampled_from(["truncate", "drop", "own-microbatch"]),
)
def test_no_microbatch_exceeds_the_cap_and_all_tokens_are_accounted_for(lengths, ranks, policy, oversize):
    """verl#7553: a microbatch over the cap; trl#4632: tokens lost without a word."""
    cap = 50
    how = {"samples_per_minibatch": 9, "max_tokens": cap, "policy": policy, "oversize": oversize}
    run = [len_ if len_ <= cap else {"truncate": cap, "drop": 0, "own-microbatch": len_}[oversize] for len_ in lengths]
    samplers = samplers_of(lengths, world_size=ranks, **how)
    handed_out = []
    for sampler in samplers:
        for microbatch in chain.from_iterable(sampler):
            handed_out += microbatch
            tokens = sum(run[sample] for sample in microbatch)
            assert tokens <= cap or (oversize == "own-microbatch" and len(microbatch) == 1)
    assert sorted(handed_out) == [sample for sample, tokens in enumerate(run) if tokens]
    counted = samplers[0].conservation()
    assert (counted.samples, counted.tokens) == (len(lengths), sum(lengths))
    assert counted.run_samples == len(handed_out)
    assert counted.run_tokens == sum(run)
    assert counted.truncated_tokens == (sum(lengths) - sum(run) if oversize == "truncate" else 0)
    assert counted == samplers[-1].conservation()


@settings(max_examples=60, deadline=None)
@given(
    lengths=any_lengths,
    before=st.tuples(st.integers(1, 5), st.integers(1, 13)),
    after=st.tuples(st.integers(1, 5), st.integers(1, 13)),
    done=st.integers(0, 12),
    group_size=st.integers(1, 3),
)
def test_a_resume_at_another_size_sees_exactly_the_rest(lengths, before, after, done, group_size):
    """torchtitan#291, Lightning#16815: the position in the data was lost at a restart, or at another world size."""
    assume(group_size <= len(lengths))

    def samplers(ranks, size):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplerWarning)  # Groups are cut here, of course.
            return samplers_of(
                lengths, world_size=ranks, samples_per_minibatch=size, max_tokens=60, seed=3, group_size=group_size
            )

    first = samplers(*before)
    iterators = [iter(sampler) for sampler in first]
    seen = [sample for _ in range(min(done, len(first[0]))) for it in iterators for sample in flat(next(it))]
    states = [sampler.state_dict() for sampler in first]
    assert all(state == states[0] for state in states), "the state depends on the rank"

    second = samplers(*after)
    for sampler in second:
        sampler.load_state_dict(json.loads(json.dumps(states[0])))
    epoch_was_over = len(seen) == len(lengths)
    expected = range(len(lengths)) if epoch_was_over else sorted(set(range(len(lengths))) - set(seen))
    rest = seen_by_all(second)
    assert sorted(chain.from_iterable(rest)) == list(expected)
    assert second[0].conservation().samples == len(seen) + len(expected)
    # And the epoch after it is the one that an undisturbed run has.
    undisturbed = samplers(*after)[0]
    undisturbed.set_epoch(2 if epoch_was_over else 1)
    assert second[0].epoch == undisturbed.epoch
    assert list(second[0]) == list(undisturbed)


def test_the_minibatches_of_the_first_epochs_are_the_simulators(traces):
    """So that `odcsim run` predicts the very minibatches that a job will train on."""
    for name, group_size in [("gsm8k_train_sft", 1), ("math100x8_qwen25math_response", 8)]:
        file = traces / f"{name}.csv"
        lengths_N = read_trace(file).lengths_S
        source = load_source(LengthSpec(trace=str(file)), base_folder=traces)
        size = 32 if lengths_N.size % 32 == 0 else math.gcd(lengths_N.size, 1000)
        epochs = 3
        drawn_NS = source.draw(epochs * lengths_N.size // size, size, seed=11)
        sampler = sampler_of(
            lengths_N,
            samples_per_minibatch=size,
            max_tokens=100_000,
            seed=11,
            group_size=group_size,
            policy="local-sort",
        )
        mine = []
        for _ in range(epochs):
            mine += [lengths_N[sampler.minibatch_at(index).samples_S] for index in range(len(sampler))]
            sampler.set_epoch(sampler.epoch + 1)
        assert source.group_size == group_size
        assert np.array_equal(drawn_NS, np.array(mine))


@pytest.mark.parametrize("policy", POLICIES)
def test_plans_are_those_of_the_simulators_policies(policy):
    cost = COST if policy.startswith("lb") else DEFAULT_COST
    how = {"samples_per_rank": 4, "policy": policy, "cost": cost, "oversize": "truncate", "max_tokens": 700}
    samplers = samplers_of(LENGTHS, world_size=3, **how)
    handed_out = [list(sampler) for sampler in samplers]
    for index in range(len(samplers[0])):
        sampled = samplers[2].minibatch_at(index)
        lengths_S = np.array(LENGTHS)[sampled.samples_S]
        expected = plan_minibatch(
            find_policy(policy), lengths_S, ranks=3, cap_tokens=700, cost=cost, oversize="truncate"
        )
        assert samplers[0].plan_of(index) == expected.plan
        for rank in range(3):
            assert handed_out[rank][index] == sampled.microbatches(rank)
            assert handed_out[rank][index] == [
                [int(sampled.samples_S[place]) for place in microbatch] for microbatch in expected.plan.ranks[rank]
            ]
        assert sampled.run_samples == len(lengths_S)
        assert sampled.run_tokens == int(np.minimum(lengths_S, 700).sum())
        assert sampled.predicted_tokens == sampled.run_tokens - len(lengths_S)


def test_dropped_samples_are_named_by_their_place_in_the_data_set():
    sampler = sampler_of([5, 900, 6, 7], oversize="drop", max_tokens=10)
    assert sorted(flat(next(iter(sampler)))) == [0, 2, 3]
    sampled = sampler.minibatch_at(0)
    assert sampled.dropped == [1]
    assert (sampled.run_samples, sampled.run_tokens, sampled.predicted_tokens) == (3, 18, 15)
    counted = sampler.conservation()
    assert (counted.dropped_samples, counted.dropped_tokens, counted.run_tokens) == (1, 900, 18)


def test_fewer_samples_than_ranks():
    """instructlab/training#109, prime-rl#1542, TuFT#121: a rank that gets no sample."""
    samplers = samplers_of([5, 6], world_size=4)
    handed_out = [next(iter(sampler)) for sampler in samplers]
    assert sorted(map(len, handed_out)) == [0, 0, 1, 1]
    padded = samplers_of([5, 6], world_size=4, pad=True)
    assert sorted(next(iter(sampler)) for sampler in padded) == [[[]], [[]], [[0]], [[1]]]


def test_padding_gives_every_rank_as_many_microbatches():
    samplers = samplers_of(LENGTHS, world_size=3, samples_per_rank=5, pad=True)
    for ranks in zip(*samplers, strict=True):
        assert len(set(map(len, ranks))) == 1
    plain = samplers_of(LENGTHS, world_size=3, samples_per_rank=5)
    assert any(len(set(map(len, ranks))) > 1 for ranks in zip(*plain, strict=True)), "nothing had to be padded"


def test_the_rest_that_drop_last_drops_is_counted():
    """axolotl#3861: slots miscounted with drop_last."""
    sampler = sampler_of(LENGTHS, samples_per_minibatch=16, drop_last=True)
    assert len(sampler) == 3
    seen = [sample for microbatches in sampler for sample in flat(microbatches)]
    lost = set(range(50)) - set(seen)
    counted = sampler.conservation()
    assert (len(seen), counted.samples, counted.dropped_samples, counted.run_samples) == (48, 50, 2, 48)
    assert counted.dropped_tokens == sum(LENGTHS[sample] for sample in lost)
    assert counted.tokens == sum(LENGTHS)
    assert sampler.state_dict()["epoch"] == 1


def test_a_rest_too_small_for_the_new_minibatch_is_dropped_at_once_and_counted():
    before = sampler_of(LENGTHS, samples_per_minibatch=12, drop_last=True)
    iterator = iter(before)
    for _ in range(3):
        next(iterator)
    after = sampler_of(LENGTHS, samples_per_minibatch=20, drop_last=True)
    after.load_state_dict(before.state_dict())  # 14 samples are left.
    assert (after.epoch, len(after)) == (1, 2)
    assert (after.conservation().samples, after.conservation().dropped_samples) == (50, 14)
    assert sum(len(flat(microbatches)) for microbatches in after) == 40
    assert (after.conservation().samples, after.conservation().dropped_samples) == (100, 24)


def test_groups_share_a_minibatch():
    sampler = sampler_of([9] * 48, samples_per_minibatch=8, group_size=4)
    orders = []
    for microbatches in sampler:
        samples = sorted(flat(microbatches))
        groups = [samples[:4], samples[4:]]
        assert all(group == list(range(group[0] // 4 * 4, group[0] // 4 * 4 + 4)) for group in groups)
        orders += samples
    assert orders != sorted(orders)


def test_epochs_differ_and_seeds_decide():
    def two_epochs(seed):
        sampler = sampler_of(LENGTHS, seed=seed)
        return [[flat(microbatches) for microbatches in sampler] for _ in range(2)]

    one, again, other = two_epochs(1), two_epochs(1), two_epochs(2)
    assert one == again
    assert one[0] != one[1]
    assert one[0] != other[0]


def test_without_shuffling_the_order_is_the_data_sets():
    sampler = sampler_of(LENGTHS, shuffle=False)
    for _ in range(2):
        assert [sorted(flat(microbatches)) for microbatches in sampler] == [
            list(range(start, min(start + 4, 50))) for start in range(0, 50, 4)
        ]


def test_a_loop_that_was_left_goes_on_where_it_was():
    sampler = sampler_of(LENGTHS)
    seen = []
    for microbatches in sampler:
        seen += flat(microbatches)
        if len(seen) == 20:
            break
    assert (len(sampler), sampler.epoch) == (8, 0)
    seen += [sample for microbatches in sampler for sample in flat(microbatches)]
    assert sorted(seen) == list(range(50))
    assert (len(sampler), sampler.epoch) == (13, 1)


def test_the_length_is_constant_while_a_loop_runs():
    sampler = sampler_of(LENGTHS)
    assert {(len(sampler), sampler.epoch) for _ in sampler} == {(13, 0)}


def test_set_epoch_leaves_the_cursor_within_its_epoch():
    sampler = sampler_of(LENGTHS)
    next(iter(sampler))
    position = sampler.state_dict()
    sampler.set_epoch(0)  # As loops do that know nothing of the resume.
    assert sampler.state_dict() == position
    sampler.set_epoch(3)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["consumed_samples"]) == (3, 0)
    in_loop = iter(sampler)
    next(in_loop)
    sampler.set_epoch(3)
    next(in_loop)
    assert sampler.state_dict()["consumed_samples"] == 8


def test_a_distant_epoch_is_found_at_once():
    sampler = sampler_of(LENGTHS)
    sampler.set_epoch(10**15)
    assert sorted(chain.from_iterable(map(flat, sampler))) == list(range(50))


def test_the_state_counts_what_was_trained_on_when_a_loader_draws_ahead():
    sampler = sampler_of(LENGTHS, samples_per_minibatch=10, drop_last=True)
    drawn = [flat(microbatches) for microbatches in sampler]  # All of the epoch, long before training is through.
    state = sampler.state_dict(minibatches=2)
    assert (state["epoch"], state["consumed_samples"]) == (0, 20)
    assert state["totals"]["samples"] == 20
    resumed = sampler_of(LENGTHS, samples_per_minibatch=10, drop_last=True)
    resumed.load_state_dict(state)
    assert [flat(microbatches) for microbatches in resumed] == drawn[2:]
    with pytest.raises(InputError, match="minibatches: 6: must be from 0 to 5"):
        sampler.state_dict(minibatches=6)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("seed", {"seed": 1}),
        ("samples", {"lengths": LENGTHS[:-1]}),
        ("lengths_fingerprint", {"lengths": [*LENGTHS[:-1], LENGTHS[-1] + 1]}),
        ("shuffle", {"shuffle": False}),
        ("group_size", {"group_size": 2}),
    ],
)
def test_a_state_of_another_data_set_or_order_is_refused(key, other):
    state = sampler_of(**{"lengths": LENGTHS, **other}).state_dict()
    with pytest.raises(InputError, match=f"^{key}: .*: the state is of another data set or order; here it is "):
        sampler_of(LENGTHS).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "odcrt.data.sampler/9"}, "schema: 'odcrt.data.sampler/9'"),
        ({"consumed_samples": 50}, "consumed_samples: 50: must be from 0 to 49"),
        ({"epoch": -1}, "epoch: -1: must be at least 0"),
        ({"epoch": 1.5}, "epoch: 1.5: must be a whole number"),
        ({"totals": None}, "totals: None: must be a mapping"),
        ({"totals": {}}, "samples: missing; this is not the state of a sampler"),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    sampler = sampler_of(LENGTHS)
    before = sampler.state_dict()
    with pytest.raises(InputError, match=message):
        sampler.load_state_dict({**before, **change})
    assert sampler.state_dict() == before


def test_what_is_no_state_at_all_is_refused():
    with pytest.raises(InputError, match="schema: missing; this is not the state of a sampler"):
        sampler_of(LENGTHS).load_state_dict({})


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"lengths": []}, "lengths: .*: the data set has no samples"),
        ({"lengths": [5, 0]}, r"lengths\[1\]: 0: a sample must have from 1 to 1000000000 tokens"),
        ({"lengths": [5, 1.5]}, "lengths: .*must be whole numbers in one row"),
        ({"lengths": [[5], [6, 7]]}, "lengths: .*must be whole numbers in one row"),
        ({"lengths": [True, True]}, "lengths: .*must be whole numbers in one row"),
        ({"rank": 2, "world_size": 2}, "rank: 2: must be from 0 to 1"),
        ({"world_size": 0}, "world_size: 0: must be at least 1"),
        ({"max_tokens": 0}, "max_tokens: 0: must be at least 1"),
        ({"max_tokens": 1e3}, "max_tokens: 1000.0: must be a whole number"),
        ({"samples_per_minibatch": 0}, "samples_per_minibatch: 0: must be at least 1"),
        ({"samples_per_rank": True, "samples_per_minibatch": None}, "samples_per_rank: True: must be a whole number"),
        ({"samples_per_rank": 1, "samples_per_minibatch": 4}, "exactly one of them must be given"),
        ({"samples_per_minibatch": None}, "exactly one of them must be given"),
        ({"seed": -1}, "seed: -1: must be at least 0"),
        ({"group_size": 0}, "group_size: 0: must be from 1 to 3"),
        ({"cost": TokenCost(quadratic=-1.0, linear=1.0)}, "cost: .*a sample of 5 tokens must cost 0 or more"),
        ({"drop_last": True}, "drop_last: True: leaves nothing: the data set has 3 samples, a minibatch 4"),
        ({"policy": "dynamic"}, "policy: 'dynamic': its microbatches are pulled while a minibatch runs"),
        ({"speeds": [1.0, 0.5]}, "number of speeds: 2: must be one for each of the 1 ranks"),
        ({"speeds": [0.0]}, r"speeds\[0\]: 0.0: must be above 0"),
        ({"speeds": [-1.0]}, r"speeds\[0\]: -1.0: must be a finite number of 0 or more"),
        ({"speeds": 0.5}, "speeds: 0.5: must be values in one row"),
    ],
)
def test_a_wrong_setting_is_named(settings_, message):
    with pytest.raises(InputError, match=message):
        sampler_of(**{"lengths": [5, 6, 7], **settings_})


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="policy: 'lb_mini': unknown policy; did you mean 'lb-mini'"):
        sampler_of([5], policy="lb_mini")
    with pytest.raises(UnknownNameError, match="oversize: 'cut'"):
        sampler_of([5], oversize="cut")


def test_samples_over_the_cap_are_refused_before_the_first_minibatch():
    """OpenRLHF#1280, SkyRL#1477: one sample over the cap, met in the middle of a run."""
    with pytest.raises(PolicyError, match="sample 2 has 9001 tokens, over the cap of 9000 tokens on a microbatch"):
        sampler_of([10, 20, 9001, 30], max_tokens=9000)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"pad": True, "policy": "lb-micro"}, "pad has no effect: lb-micro gives equal counts already"),
        ({"shuffle": False, "seed": 5}, "seed has no effect without shuffle"),
        ({"policy": "local-sort", "cost": COST}, "cost has no effect: local-sort does not balance by it"),
        ({"policy": "lb-mini", "speeds": [0.5]}, "speeds has no effect: lb-mini plans as if all ranks were alike"),
        (
            {"samples_per_minibatch": 6, "group_size": 4},
            "minibatches of 6 samples cut groups of 4; use a multiple of 4",
        ),
        ({"samples_per_minibatch": 9, "group_size": 3}, "50 samples make no whole number of groups of 3"),
    ],
)
def test_a_setting_without_effect_warns(settings_, message):
    """verl#7758, LLaMA-Factory#9269: an option that was ignored without a word."""
    with pytest.warns(SamplerWarning, match=message):
        sampler_of(LENGTHS, **settings_)


def test_a_slower_rank_gets_less_to_do():
    how = {"world_size": 3, "samples_per_rank": 8, "policy": "independent", "cost": COST}
    speeds_D = [1.0, 0.5, 2.0]
    sampler = sampler_of(LENGTHS, speeds=np.array(speeds_D), **how)
    minibatch = sampler.minibatch_at(0)
    expected = plan_minibatch(
        find_policy("independent"),
        minibatch.planned.lengths_S,
        ranks=3,
        cap_tokens=1000,
        cost=COST,
        speeds_D=np.array(speeds_D),
    )
    assert minibatch.plan == expected.plan
    assert minibatch.plan != sampler_of(LENGTHS, **how).plan_of(0)
    loads = minibatch.plan.loads(minibatch.planned.lengths_S)
    work_D = COST.quadratic * loads.squared_tokens_DM + COST.linear * loads.tokens_DM
    time_D = (work_D.sum(axis=1) + COST.constant * loads.counts_D) / np.array(speeds_D)
    # Alike they would take 1, 2 and 0.5 times as long as each other.
    assert time_D.max() < 1.25 * time_D.min()


def test_speeds_change_no_order_and_no_state():
    """A run goes on at other speeds, with the samples that were not handed out."""
    how = {"world_size": 2, "policy": "independent"}
    samplers = samplers_of(LENGTHS, speeds=[1.0, 0.25], **how)
    first = [next(iter(sampler)) for sampler in samplers]
    state = samplers[0].state_dict()
    assert state == samplers[1].state_dict()
    others = samplers_of(LENGTHS, **how)
    for other in others:
        other.load_state_dict(state)
    rest = chain.from_iterable(seen_by_all(others))
    assert sorted(chain(flat(chain.from_iterable(first)), rest)) == list(range(50))


def test_whole_numbers_are_read_as_they_are_for_plans():
    """Both programs take the same values for whole numbers, each with words of its own for the others."""
    for value in (3, np.int64(3), np.uint8(3)):
        assert whole_number("k", value, least=3, most=3) == whole_number_for_plans("k", value, least=3, most=3) == 3
    for value, told, told_for_plans in (
        (True, "k: True: must be a whole number", "k: True: must be a whole number of 1 or more"),
        (1.0, "k: 1.0: must be a whole number", "k: 1.0: must be a whole number of 1 or more"),
        ("1", "k: '1': must be a whole number", "k: '1': must be a whole number of 1 or more"),
        (None, "k: None: must be a whole number", "k: None: must be a whole number of 1 or more"),
        (np.int64(0), "k: 0: must be at least 1", "k: 0: must be a whole number of 1 or more"),
    ):
        for check, expected in ((whole_number, told), (whole_number_for_plans, told_for_plans)):
            with pytest.raises(InputError) as caught:
                check("k", value, least=1)
            assert str(caught.value) == expected
    with pytest.raises(InputError, match=r"^k: 4: must be from 1 to 3$"):
        whole_number("k", 4, least=1, most=3)


def test_a_policy_of_ones_own_is_taken_and_lengths_are_kept():
    lengths = list(LENGTHS)
    sampler = sampler_of(lengths, policy=find_policy("lb-micro"))
    expected = list(sampler_of(LENGTHS, policy="lb-micro"))
    lengths[:] = [1] * 50  # What happens to the caller's list later is not the sampler's.
    assert list(sampler) == expected


def test_a_minibatch_beyond_the_pass_is_refused():
    with pytest.raises(InputError, match="minibatch: 13: must be from 0 to 12"):
        sampler_of(LENGTHS).plan_of(13)


def test_microbatches_come_one_by_one_from_the_same_pass():
    whole = sampler_of(LENGTHS, samples_per_rank=5, world_size=3)
    view = sampler_of(LENGTHS, samples_per_rank=5, world_size=3).microbatches()
    expected = [microbatch for microbatches in whole for microbatch in microbatches]
    assert len(view) == len(expected) == sum(whole.plan_of(index).counts[0] for index in range(4))
    assert list(view) == expected


class TestDataLoader:
    """What a batch is, in PyTorch's own loader."""

    @pytest.fixture
    def loading(self):
        torch = pytest.importorskip("torch")
        from odcrt.data.packing import pack

        class Data(torch.utils.data.Dataset):
            def __getitem__(self, index):
                if isinstance(index, list):  # A microbatch.
                    return pack([self[sample] for sample in index], allow_empty=True)
                return torch.full((LENGTHS[index],), index)

        return torch.utils.data.DataLoader, Data(), pack

    def test_a_batch_is_a_minibatch(self, loading):
        loader_class, data, _ = loading
        sampler = sampler_of(LENGTHS, world_size=2, samples_per_rank=4)
        loader = loader_class(data, batch_sampler=sampler, collate_fn=list)
        assert len(loader) == 7
        found = [[[int(row[0]) for row in rows(packed)] for packed in packs] for packs in loader]
        assert found == list(sampler_of(LENGTHS, world_size=2, samples_per_rank=4))

    def test_a_batch_is_a_microbatch(self, loading):
        loader_class, data, pack = loading
        sampler = sampler_of(LENGTHS, world_size=2, samples_per_rank=4)
        loader = loader_class(data, batch_sampler=sampler.microbatches(), collate_fn=pack)
        found = [[int(row[0]) for row in rows(packed)] for packed in loader]
        assert found == list(sampler_of(LENGTHS, world_size=2, samples_per_rank=4).microbatches())


def rows(packed):
    return packed.token_ids_T.split(list(packed.document_lengths))
