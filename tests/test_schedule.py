"""The learning rate, value by value."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from experiment.schedule import DECAY_SHAPES, Schedule, exact, step_at, steps_of_marks

MAIN = Schedule(3e-3, 3e-4, 1e9, 23e9, 6e9, "1-sqrt", batch_tokens=2**20)

settings.register_profile("steady", deadline=None, max_examples=50)
settings.load_profile("steady")

lengths = st.floats(1e6, 5e10).map(lambda x: float(round(x)))
schedules = st.builds(
    Schedule,
    peak_lr=st.floats(1e-4, 1e-1),
    min_lr=st.floats(0, 1e-4),
    warmup_tokens=st.one_of(st.just(0.0), lengths),
    stable_tokens=st.one_of(st.just(0.0), lengths),
    decay_tokens=lengths,
    decay_shape=st.sampled_from(list(DECAY_SHAPES)),
    batch_tokens=st.sampled_from([4096, 100_000, 2**20]),
    token_scale=st.sampled_from([1.0, 0.1, 1e-4, 2e-5, 3.3e-6]),
)


def rates(schedule: Schedule) -> dict[int, float]:
    """Rate at every step of a short run; at all borders and 200 places between them of a long one."""
    steps = range(schedule.start_step + 1, schedule.end_step + 1)
    assume(len(steps) > 0)
    borders = (schedule.warmup_end_step, schedule.stable_end_step, schedule.end_step, schedule.start_step + 1)
    near = {b + d for b in borders for d in range(-3, 4) if b + d in steps}
    chosen = sorted(near | set(steps[:: max(1, len(steps) // 200)]))
    return {step: schedule.lr_at(step * schedule.batch_tokens) for step in chosen}


@given(schedules)
def test_first_update_above_zero_peak_at_the_end_of_warmup_floor_at_the_last(schedule):
    rate = rates(schedule)
    assert rate[schedule.start_step + 1] > 0 or schedule.end_step == schedule.start_step + 1
    if schedule.start_step < schedule.warmup_end_step:
        assert rate[schedule.warmup_end_step] == schedule.peak_lr
    if schedule.warmup_end_step < schedule.stable_end_step:
        assert rate[schedule.stable_end_step] == schedule.peak_lr
    if schedule.stable_end_step < schedule.end_step:
        assert rate[schedule.end_step] == schedule.min_lr


@given(schedules)
def test_rises_then_stays_then_falls_and_keeps_within_floor_and_peak(schedule):
    rate = rates(schedule)
    phases = [schedule.phase_of_step(step) for step in rate]
    assert sorted(phases, key=["warmup", "stable", "decay"].index) == phases
    values = list(rate.values())
    for (before, after), phase in zip(itertools.pairwise(values), phases[1:], strict=True):
        if phase == "warmup":
            assert after > before
        elif phase == "stable":
            assert after == schedule.peak_lr
        else:
            assert after <= before
    assert all(0 < value <= schedule.peak_lr * (1 + 1e-12) for value in values[:-1])


@given(schedules)
def test_a_branch_has_the_rate_of_the_whole_run_at_every_step(whole):
    mark = whole.warmup_tokens + whole.stable_tokens
    assume(step_at(mark, whole.batch_tokens, whole.token_scale) > 0)
    branch = replace(whole, warmup_tokens=0.0, stable_tokens=0.0, start_tokens=mark)
    assert branch.start_step == whole.stable_end_step
    assert branch.end_step == whole.end_step
    for step, rate in rates(branch).items():
        assert rate == whole.lr_of_step(step)
        assert branch.phase_of_step(step) == whole.phase_of_step(step) == "decay"


@given(schedules, st.floats(1e9, 1e11))
def test_a_trunk_has_the_rate_of_the_whole_run_before_the_mark(whole, length):
    trunk = replace(whole, stable_tokens=whole.stable_tokens + length, decay_tokens=0.0)
    for step, rate in rates(whole).items():
        if step <= whole.stable_end_step:
            assert rate == trunk.lr_of_step(step)


@pytest.mark.parametrize(
    "shape, middle", [("1-sqrt", 1 - math.sqrt(0.5)), ("linear", 0.5), ("cosine", 0.5 * (1 + math.cos(math.pi / 2)))]
)
def test_decay_shapes_at_main_scale(shape, middle):
    schedule = replace(MAIN, decay_shape=shape)
    start, end = schedule.stable_end_step, schedule.end_step
    assert (start, end) == (22888, 28610)
    assert schedule.lr_of_step((start + end) // 2) == pytest.approx(3e-4 + 2.7e-3 * middle, rel=1e-12)
    assert schedule.lr_of_step(1) == 3e-3 / 954
    assert schedule.lr_of_step(954) == 3e-3
    assert schedule.lr_of_step(end) == 3e-4


def test_positions_round_half_up_and_never_lengths():
    assert [step_at(x, 4, 1.0) for x in (1.0, 2.0, 5.0, 6.0)] == [0, 1, 1, 2]
    assert step_at(0.1 + 0.2, 1, 1.0) == 0
    assert step_at(24e9, 4096, 1e-5) == 59  # 58.59
    # two lengths of 0.4 batches: each rounds to 0, their sum to 1
    assert Schedule(1.0, 0.1, 0.4, 0.4, 10.0, "linear", 1).stable_end_step == 1


def test_marks_that_collide_or_vanish_are_errors():
    assert steps_of_marks([24e9, 80e9], 4096, 1e-5) == {59: 24e9, 195: 80e9}
    with pytest.raises(ValueError, match="both step 1"):
        steps_of_marks([24e9, 24.1e9], 4096, 2e-7)
    with pytest.raises(ValueError, match="step 0"):
        steps_of_marks([1e9], 4096, 1e-7)


def test_outside_the_run_or_inside_a_batch_there_is_no_rate():
    for tokens in (0, MAIN.batch_tokens * (MAIN.end_step + 1), MAIN.batch_tokens + 1):
        with pytest.raises(ValueError):
            MAIN.lr_at(tokens)


@given(schedules, st.floats(1e6, 3e10))
def test_due_steps_are_the_rounded_multiples(schedule, every):
    steps_per_multiple = every * schedule.token_scale / schedule.batch_tokens
    wanted = {step_at(exact(every) * i, schedule.batch_tokens, schedule.token_scale) for i in range(1, 30)} - {0}
    end = min(int(29 * steps_per_multiple), max(wanted, default=0), 2000)
    assert {step for step in range(1, end) if schedule.is_due(step, every)} == {step for step in wanted if step < end}
