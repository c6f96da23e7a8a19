"""Reduced gradients that are thrown away leave no trace; applied ones do."""

import gc

import numpy as np
import pytest
import worlds

pytest.importorskip("torch", exc_type=ImportError)
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

from hvd_sparse.errors import UnsupportedReduction
from hvd_sparse.frontend.torch.results import Results
from hvd_sparse.step.session import Session

NUMEL = 40


def alone(script):
    return worlds.run(1, script)[0]


def several(collective, count):
    specs = worlds.tensors(*count * [(NUMEL,)])
    session = Session(worlds.configure(density=0.1), specs, collective)
    weights = [nn.Parameter(torch.ones(NUMEL)) for _ in specs]
    return session, weights, Results(session.step, weights)


class Trainee:
    def __init__(self, collective, **options):
        configuration = worlds.configure(density=0.1, **options)
        self.session = Session(configuration, worlds.tensors((NUMEL,)), collective)
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, NUMEL))
        self.results = Results(self.session.step, [self.weight])
        self.descent = torch.optim.SGD([self.weight], lr=0.5)

    def reduce(self, seed):
        given = np.random.RandomState(seed).normal(size=NUMEL).astype(np.float32)
        (self.weight * torch.from_numpy(given)).sum().backward()
        self.collect()

    def collect(self):
        gradient = self.weight.grad
        self.results.settle(0)
        wire, ticket = self.session.driver.compress(0, gradient.numpy().copy())
        result = self.session.driver.decompress(wire, ticket)
        self.results.hand_out(0, ticket.run, torch.from_numpy(result))
        gradient.set_(torch.from_numpy(result))

    def forget(self):
        self.weight.grad = None

    def forget_in_place(self):
        self.descent.zero_grad(set_to_none=False)

    def take_step(self):
        self.descent.step()

    def kept(self):
        self.results.settle_all()
        stats = self.session.step.stats.report(None)
        self.results.close()
        return worlds.snapshot(self.session), stats["steps"]


def played(*acts, **options):
    def script(collective):
        trainee = Trainee(collective, **options)
        for act in acts:
            act(trainee)
        return trainee.kept()

    return alone(script)


def first(trainee):
    trainee.reduce(0)
    trainee.take_step()
    trainee.forget()


def wasted(trainee):
    trainee.reduce(1)


def second(trainee):
    trainee.reduce(2)
    trainee.take_step()


def forget_through_data(trainee):
    trainee.weight.grad.data.zero_()  # does not change the version


def replace(trainee):
    trainee.weight.grad = torch.zeros(NUMEL)


def climb_and_return(trainee):
    """What SAM does with its first gradient."""
    with torch.no_grad():
        trainee.weight.add_(trainee.weight.grad, alpha=0.1)
    trainee.forget()


def withhold(trainee):
    """What DINO does with the gradient of the last layer in its first epoch."""
    trainee.forget()
    trainee.take_step()


def ask_for_the_state(trainee):
    trainee.results.settle_all()
    trainee.session.step.transactions.settle_all()


@pytest.mark.parametrize("is_applied", [False, True])
def test_of_a_step_that_an_interrupt_ended_between_two_results_a_state_has_neither(is_applied):
    """As if Ctrl-C came while Horovod waited for the second. If another optimizer has already
    applied the first, this one is kept."""

    def script(collective):
        session, weights, results = several(collective, 2)
        given = np.linspace(-1.0, 1.0, NUMEL, dtype=np.float32)
        wires = [session.driver.compress(position, given.copy()) for position in (0, 1)]
        result = torch.from_numpy(session.driver.decompress(*wires[0]))
        weights[0].grad = result
        results.hand_out(0, wires[0][1].run, result)
        if is_applied:
            torch.optim.SGD(weights[:1], lr=0.1).step()
        results.settle_all()
        results.close()
        return {key: steps for key, (steps, _, _) in worlds.snapshot(session).items()}

    assert alone(script) == {"t0": int(is_applied), "t1": 0}


def test_a_state_has_a_result_beside_one_of_zeros_that_no_optimizer_applies():
    """A program that applies results itself may ask for the state before it does so."""

    def script(collective):
        session, weights, results = several(collective, 2)
        given = [np.zeros(NUMEL, np.float32), np.linspace(-1.0, 1.0, NUMEL, dtype=np.float32)]
        wires = [session.driver.compress(i, each.copy()) for i, each in enumerate(given)]
        for weight, (wire, ticket) in zip(weights, wires):
            weight.grad = torch.from_numpy(session.driver.decompress(wire, ticket))
            results.hand_out(results.position_of[id(weight)], ticket.run, weight.grad)
        results.settle_all()
        results.close()
        return worlds.snapshot(session)["t1"][0]

    assert alone(script) == 1


@pytest.mark.parametrize("case", ["NaN, then applied", "applied, then NaN", "applied, then error"])
def test_of_two_optimizers_with_one_compressor_the_failure_of_one_does_not_undo_the_other(case):
    """Both backward passes come before the first result, so all gradients are in one step."""
    *_, end = case.split()

    def script(collective):
        session, weights, results = several(collective, 4)
        first = torch.optim.SGD(weights[:2], lr=0.1)
        given = [np.linspace(-1.0, 1.0, NUMEL, dtype=np.float32) for _ in weights]
        given[3][5] = np.nan if end != "error" else 0.0

        def synchronize(*positions):
            for position in positions:
                result = torch.from_numpy(session.driver.decompress(*wires[position]))
                weights[position].grad = result
                results.hand_out(position, wires[position][1].run, result)

        for _ in range(2):
            for position in range(4):
                results.settle(position)
            wires = [session.driver.compress(i, each.copy()) for i, each in enumerate(given)]
            synchronize(0, 1)
            if end == "applied":
                synchronize(2, 3)
            first.step()
            if end == "NaN":
                synchronize(2, 3)
            elif end == "error":
                wires[2][0][:] = np.nan
                with pytest.raises(UnsupportedReduction):
                    synchronize(2)
        results.settle_all()
        results.close()
        counts = session.step.stats.report(None)["tensors"].items()
        kept = {key: steps for key, (steps, _, _) in worlds.snapshot(session).items()}
        return kept, {key: counted["sparse_steps"] for key, counted in counts}

    kept, counted = alone(script)
    assert kept == {"t0": 2, "t1": 2, "t2": 0, "t3": 0}
    assert kept == {**kept, **counted}


THROWN_AWAY = {
    "set to none": [Trainee.forget],
    "zeroed in place": [Trainee.forget_in_place],
    "zeroed through .data": [forget_through_data],
    "replaced": [replace],
    "set to none, then saved": [Trainee.forget, ask_for_the_state],
}


@pytest.mark.parametrize("acts", THROWN_AWAY.values(), ids=THROWN_AWAY)
@pytest.mark.parametrize("before", [[], [first]], ids=["at first", "after a step"])
def test_a_result_that_is_thrown_away_leaves_no_trace(acts, before):
    assert played(*before, wasted, *acts, second) == played(*before, second)


@pytest.mark.parametrize("acts", [[climb_and_return], [withhold]], ids=["SAM", "DINO"])
def test_weights_that_move_are_no_proof_once_an_optimizer_was_seen(acts):
    assert played(first, wasted, *acts, second) == played(first, second)


def test_of_an_optimizer_that_was_handed_over_a_step_is_expected_from_the_start():
    def hand_over(trainee):
        trainee.results.hand_over()

    assert played(hand_over, wasted, climb_and_return, second) == played(second)


def stand_still(trainee):
    trainee.descent.param_groups[0]["lr"] = 0.0
    trainee.take_step()
    trainee.forget()


def descend_by_hand(trainee):
    with torch.no_grad():
        trainee.weight.sub_(trainee.weight.grad)
    trainee.forget()


def descend_unseen(trainee):
    trainee.weight.data.sub_(trainee.weight.grad)
    trainee.forget_in_place()


def clip_and_accumulate(trainee):
    nn.utils.clip_grad_norm_([trainee.weight], 0.01)


APPLIED = {
    "by hand": [wasted, descend_by_hand],
    "through .data": [wasted, descend_unseen],
    "at a learning rate of 0": [wasted, stand_still],
    "at a learning rate of 0, later": [first, wasted, stand_still],
    "with the next": [wasted],
    "with the next, later": [first, wasted],
    "with the next, clipped": [wasted, clip_and_accumulate],
    "with the next, clipped, later": [first, wasted, clip_and_accumulate],
}


@pytest.mark.parametrize("acts", APPLIED.values(), ids=APPLIED)
def test_what_is_applied_or_kept_counts(acts):
    _, steps = played(*acts, second)
    assert steps == 1 + sum(act in (first, wasted) for act in acts)


@pytest.mark.parametrize("place", ["pre", "post"])
def test_a_state_has_the_steps_in_which_weights_changed_before_a_hook_failed(place):
    def script(collective):
        trainee = Trainee(collective)
        first(trainee)
        wasted(trainee)
        getattr(trainee.descent, f"register_step_{place}_hook")(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainee.take_step()
        trainee.results.settle_all(but_due=True)
        return list(trainee.results.waiting)

    assert alone(script) == ([0] if place == "pre" else [])


def test_gradients_that_a_hook_of_the_optimizer_frees_were_applied(caplog):
    def free_behind_steps(trainee):
        trainee.descent.register_step_post_hook(lambda *_: trainee.forget())

    assert played(free_behind_steps, first, second, first)[1] == 3
    assert not caplog.records
    withheld = played(free_behind_steps, first, wasted, climb_and_return, withhold, second)
    assert withheld == played(free_behind_steps, first, second)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_program_that_applies_what_it_makes_of_copies_is_judged_once_at_most(in_place, caplog):
    """PCGrad resets each task's gradient, and gives the optimizer what it makes of all of them."""

    def combine(trainee):
        forget = trainee.forget_in_place if in_place else trainee.forget
        copies = []
        for seed in (1, 2):
            trainee.reduce(seed)
            copies.append(trainee.weight.grad.clone())
            if seed == 1 or not in_place:
                forget()
        if in_place:
            trainee.weight.grad.copy_(copies[0] + copies[1])
        else:
            trainee.weight.grad = copies[0] + copies[1]
        trainee.take_step()
        forget()

    _, steps = played(combine, combine, combine)
    assert steps == 3 * 2 - 1, "of the first iteration alone a step is taken back"
    assert "thrown away" in caplog.messages[0]
    if in_place:
        assert "a combination of several results" in caplog.messages[1]
        assert len(caplog.messages) == 2


def test_a_result_that_is_clipped_behind_one_that_was_thrown_away_is_itself():
    def climb_and_clip(trainee):
        for seed in (1, 2):
            trainee.forget_in_place()
            trainee.reduce(seed)
        clip_and_accumulate(trainee)
        trainee.take_step()
        trainee.forget_in_place()

    _, steps = played(climb_and_clip, climb_and_clip, climb_and_clip)
    assert steps == 3


def test_every_gradient_that_lbfgs_asks_for_counts():
    """It takes several in a step, and moves the weights after each."""

    seeds = iter(range(10, 20))

    def optimize(trainee):
        descent = torch.optim.LBFGS([trainee.weight], lr=0.1, max_iter=3)

        def closure():
            descent.zero_grad()
            trainee.reduce(next(seeds))
            return trainee.weight.detach().sum()

        descent.step(closure)
        descent.step(closure)

    _, steps = played(optimize)
    assert steps == next(seeds) - 10 > 3


def test_several_backward_passes_before_the_next_reduction_change_nothing():
    def accumulate_twice(trainee):
        trainee.weight.sum().backward()
        trainee.reduce(2)
        trainee.take_step()

    found = played(first, wasted, Trainee.forget_in_place, accumulate_twice)
    assert found == played(first, accumulate_twice)


REMEDIES = ("rollback=False out", "requires_grad_(False)", "no_sync()", "module")


@pytest.mark.parametrize(
    ("rollback", "counted", "words"),
    [(False, 3, REMEDIES), (True, 1, ("'t0' was reduced, and thrown away",))],
)
def test_taking_a_step_back_or_what_to_do_is_said_once(rollback, counted, words, caplog):
    _, steps = played(wasted, Trainee.forget, wasted, Trainee.forget, second, rollback=rollback)
    assert steps == counted
    (said,) = caplog.messages
    assert all(word in said for word in words)


def test_a_step_with_nan_is_not_said_to_be_thrown_away(caplog):
    def spoil(trainee):
        trainee.weight.grad = torch.full([NUMEL], torch.nan)
        trainee.collect()
        trainee.forget()

    assert played(first, spoil, second) == played(first, second)
    assert not caplog.records


def test_the_collector_removes_no_hooks_while_torch_runs_them():
    def script(collective):
        old, last = Trainee(collective), Trainee(collective)
        old.itself = old  # so that only the collector deletes it
        hooks = len(_global_optimizer_post_hooks)

        def collect(*_):
            nonlocal old
            old = None
            gc.collect()

        # The hook of ``last`` comes first, that of ``between`` follows it.
        collecting = register_optimizer_step_post_hook(collect)
        between = Trainee(collective)
        last.reduce(1)
        last.take_step()
        collecting.remove()
        del between
        Trainee(collective)
        return hooks, len(_global_optimizer_post_hooks)

    hooks, left = alone(script)
    assert left < hooks + 2
