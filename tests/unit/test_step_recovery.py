"""After a gradient that one rank could not place, the next step is a step like any other."""

from __future__ import annotations

import numpy as np
import pytest
import worlds
from unit.steps import FAULTY, assert_conserved, gradients, measured_step, start
from worlds import configure

from hvd_sparse.errors import PeerFailure, UnknownGradient


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("position", [0, 1], ids=["in a bucket of its own", "in a bucket of two"])
def test_the_step_after_a_gradient_without_a_place_works_and_conserves(position, world_size):
    """The other ranks entered one bucket of two; what the failed rank submits for the other must
    meet no later step."""

    def script(collective):
        session = start(collective, configure())
        given, key = gradients(collective, 0), f"t{position}"
        if collective.rank == FAULTY:
            wire, ticket = session.driver.poison(
                UnknownGradient("which tensor is this?"), "x", np.float32
            )
        else:
            wire, ticket = session.driver.compress(position, given[key].reshape(-1))
        reduced = collective.allreduce(wire, key).wait(None)
        with pytest.raises(PeerFailure):
            session.driver.decompress(reduced, ticket)
        return [measured_step(session, gradients(collective, step)) for step in (1, 2)]

    outcomes = worlds.run(world_size, script)
    for step in range(2):
        assert_conserved([steps[step] for steps in outcomes])
