"""Checks that every memory must pass."""

import numpy as np
from conformance.kernel_checks import untouched
from distributions import draw
from worlds import bits_of

from hvd_sparse.kernels import reference
from hvd_sparse.types import Selection, TensorSpec


def every_nth(x, step):
    indices = np.arange(0, x.size, step, dtype=np.uint32)
    indices = indices[x[indices] != 0]
    return Selection(indices, x[indices].copy(), x.size)


def residual_of(state):
    return state.arrays()["residual"].copy()


def make_step(state, gradient, nth=4, ranks=1):
    """Send every ``nth`` entry; return the accumulated vector and what was sent."""
    state.world_size = ranks
    with untouched(gradient):
        accumulated = state.compensate(gradient, reference).vector.copy()
    selection = every_nth(accumulated, nth)
    state.update(selection, True)
    return accumulated, selection


def after_a_step(memory, *, rollback):
    """Return the state of a tensor after one step, and what the step has sent."""
    state = memory.create(TensorSpec("t", (30, 10), "float32"), rollback=rollback)
    _, sent = make_step(state, draw("normal", 300, seed=1))
    state.commit()
    return state, sent


def check_split_is_exact(memory, name, dtype, *, rollback):
    """Check law 1 bit for bit over several steps. A sent entry is +0.0 in the next residual."""
    numel = 200
    state = memory.create(TensorSpec("t", (numel // 10, 10), dtype), rollback=rollback)
    residual = np.zeros(numel, dtype)
    for seed in range(4):
        gradient = draw(name, numel, dtype, seed)
        with untouched(gradient):
            found = state.compensate(gradient, reference)
        added = gradient if memory.adds_gradient else found.added
        expected = residual + added
        assert found.added.tobytes() == added.tobytes()
        assert found.vector.tobytes() == expected.tobytes(), "accumulated is not residual + added"
        sent = every_nth(found.vector, 3)
        state.update(sent, True)
        state.commit()
        residual = residual_of(state)
        assert not residual[sent.indices].view(np.uint8).any(), "what was sent is also kept"
        merged = residual.copy()
        merged[sent.indices] = sent.values
        assert merged.tobytes() == expected.tobytes(), (
            "sent and kept entries are not what was accumulated"
        )


def check_rests(memory):
    """Check that a step at learning rate 0 sends no entries, keeps the residual, and applies
    received entries."""
    state, _ = after_a_step(memory, rollback=True)
    arrived = draw("uniform", 300)
    finished = state.finish(arrived.copy(), np.zeros_like(arrived), True, reference)
    assert finished.tobytes() == arrived.tobytes(), "what arrives is not what is applied"
    state.rate = 0.0
    for takes_all in (False, True):
        before = residual_of(state)
        resting = state.compensate(draw("normal", 300, seed=3), reference).vector
        assert not resting.any(), "a step without a rate offers something"
        if takes_all:
            assert not state.take_all().any(), "a step without a rate sends something"
        else:
            at = np.arange(0, 300, 3, dtype=np.uint32)
            state.update(Selection(at, resting[at], 300), True)
        state.commit()
        assert residual_of(state).tobytes() == before.tobytes(), (
            "a step without a rate lost something"
        )
    moments = state.compensate(np.full(300, np.nan, np.float32), reference).moments
    assert moments is not None and not moments.is_finite, "NaN is not seen at a rate of 0"
    state.roll_back()


def check_finish_leaves_its_input(memory):
    """And no trace in any array if the step is taken back."""
    reduced, parameter = draw("normal", 200), draw("normal", 200, seed=1)
    for is_compressed in (True, False):
        state = memory.create(TensorSpec("t", (20, 10), "float32"), rollback=True)
        before = {}
        for seed in (2, 3):
            if is_compressed:
                make_step(state, draw("normal", 200, seed=seed))
            with untouched(reduced, parameter):
                state.finish(reduced, parameter, is_compressed, reference)
            if not before:
                state.commit()
                before = bits_of(state.arrays())
        state.roll_back()
        assert bits_of(state.arrays()) == before, "a failed step left a trace"


def check_parameters_are_read_if_declared(memory):
    """Frontends pass an empty array in place of a parameter that is not read."""
    reduced, parameter = draw("normal", 200), draw("normal", 200, seed=1)

    def finished(value):
        state = memory.create(TensorSpec("t", (20, 10), "float32"), rollback=True)
        assert state.reads_parameter == memory.reads_parameter
        make_step(state, draw("normal", 200, seed=2))
        return state.finish(reduced, value, True, reference).tobytes()

    other = -parameter if memory.reads_parameter else parameter[:0]
    assert (finished(parameter) != finished(other)) == memory.reads_parameter


def check_roll_back_restores_bits(memory, *, dense):
    state, _ = after_a_step(memory, rollback=True)
    before = bits_of(state.arrays())
    twin, _ = after_a_step(memory, rollback=True)
    state.step = twin.step = 1
    for _ in range(2):
        if dense:
            state.compensate(draw("lognormal", 300, seed=2), reference)
            state.take_all()
        else:
            make_step(state, draw("lognormal", 300, seed=2))
        state.roll_back()
        assert bits_of(state.arrays()) == before, "a failed step left a trace"
    next_ones = [make_step(s, draw("uniform", 300, seed=3))[0].tobytes() for s in (state, twin)]
    assert next_ones[0] == next_ones[1], "the step after a failed one begins elsewhere"


def check_mass_is_kept_without_roll_back(memory, *, dense):
    state, _ = after_a_step(memory, rollback=False)
    before = residual_of(state).tobytes()
    accumulated = state.compensate(draw("lognormal", 300, seed=2), reference).vector.copy()
    if dense:
        state.take_all()
    else:
        state.update(every_nth(accumulated, 4), True)
    state.roll_back()
    once = residual_of(state).tobytes()
    assert once in (before, accumulated.tobytes()), "a failed step lost or doubled entries"
    state.roll_back()
    assert residual_of(state).tobytes() == once, "rolling back twice is not rolling back once"


def check_dense_step(memory, *, rollback):
    """Check that a step which never began changes nothing, and that a dense step sends all."""
    state, _ = after_a_step(memory, rollback=rollback)
    before = residual_of(state)
    state.roll_back()
    assert residual_of(state).tobytes() == before.tobytes(), "sent entries are back"
    accumulated = state.compensate(draw("normal", 300, seed=2), reference).vector.copy()
    everything = state.take_all()
    state.commit()
    assert everything.tobytes() == accumulated.tobytes()
    assert not residual_of(state).any()


def check_masking(memory):
    """(5) With masking, the velocity of sent entries becomes 0; without, it does not."""
    state, sent = after_a_step(memory, rollback=True)
    velocity = state.arrays()["momentum"]
    assert velocity[sent.indices].any() != memory.masking, f"velocity, {memory.masking=}"
    assert np.delete(velocity, sent.indices).all() == (memory.momentum > 0)


def check_memory(memory):
    for dense in (False, True):
        check_roll_back_restores_bits(memory, dense=dense)
        if memory.conserves:
            check_mass_is_kept_without_roll_back(memory, dense=dense)
    for rollback in (True, False) if memory.conserves else ():
        check_split_is_exact(memory, "signed_zeros", "float32", rollback=rollback)
        check_dense_step(memory, rollback=rollback)
    if memory.finishes:
        check_finish_leaves_its_input(memory)
        check_parameters_are_read_if_declared(memory)
        if memory.conserves:
            check_rests(memory)
    if hasattr(memory, "masking"):
        check_masking(memory)
