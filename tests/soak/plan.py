"""A long training with faults from a random plan with a seed, and the checks of its steps.

The checks are exact, bit for bit: every entry is either sent or stays in the residual, and the
result is the sum of the sent entries in rank order.
"""

import numpy as np

SHAPES = {"wide": (24, 10), "tall": (40, 3), "small": (7, 5)}


class Plan:
    def __init__(self, seed):
        self._seed = seed

    def _draw(self, *what):
        return np.random.default_rng([self._seed, *what])

    def schedule(self, steps):
        boundaries = list(range(150, steps + 1000, 250))
        densities = np.exp(self._draw(0).uniform(np.log(0.01), np.log(0.5), len(boundaries) + 1))
        return {
            "id": "piecewise",
            "boundaries": boundaries,
            "densities": [float(d) for d in densities],
        }

    def scale(self, step):
        return float(2.0 ** self._draw(1, step // 7).integers(0, 17))

    def spoiled(self, step, world_size):
        """Return the tensors that get a NaN or Inf in this step, by rank."""
        if self._draw(2, step // 5).random() > 0.06:
            return {}
        draw = self._draw(3, step)
        ranks = draw.choice(world_size, draw.integers(1, world_size + 1), replace=False)
        return {int(rank): str(draw.choice(list(SHAPES))) for rank in ranks}

    def gradients(self, step, rank, world_size):
        draw = self._draw(4, step, rank)
        scale = np.float32(self.scale(step))
        given = {
            key: (draw.standard_t(3, shape).astype("f4") * scale).astype("f4")
            for key, shape in SHAPES.items()
        }
        bad = self.spoiled(step, world_size).get(rank)
        if bad is not None:
            given[bad].flat[draw.integers(given[bad].size)] = draw.choice([np.nan, np.inf, -np.inf])
        return given

    def sizes(self, segments):
        return [int(size) for size in self._draw(5).integers(2, 5, segments)]


def check_step(plan, step, before, after, results):
    """Check that one step loses nothing and that all ranks have the same result, from the flat
    residuals and the results of all ranks."""
    size, scale = len(before), np.float32(plan.scale(step))
    bad = set(plan.spoiled(step, size).values())
    for key in SHAPES:
        assert len({np.asarray(result[key]).tobytes() for result in results}) == 1, (
            f"replicas differ: {key}, {step}"
        )
        if bad:
            for old, new in zip(before, after):
                assert new[key].tobytes() == old[key].tobytes(), (
                    f"a step taken back left a trace: {key}, {step}"
                )
            assert np.isnan(results[0][key]).any() == (key in bad), (
                f"seen in another tensor: {key}, {step}"
            )
            continue
        out = np.zeros(before[0][key].size, np.float32)
        for rank, (old, new) in enumerate(zip(before, after)):
            accumulated = old[key] + plan.gradients(step, rank, size)[key].reshape(-1) / scale
            sent = new[key] != accumulated
            assert not new[key][sent].any(), f"neither sent nor kept: {key}, rank {rank}, {step}"
            out[sent] += accumulated[sent] * np.float32(1.0 / size)
        assert (out * scale).tobytes() == np.asarray(results[0][key]).reshape(-1).tobytes(), (
            f"lost: {key}, {step}"
        )


def check_redistribution(states, new):
    """Check that redistribution does not change the update that is still to be applied, except for
    a rounding of each entry to float32.

    states : states of the compressors of all ranks before the redistribution
    """
    old = [{k: t["arrays"]["residual"] for k, t in each["tensors"].items()} for each in states]
    for key in SHAPES:
        sums = [
            sum(np.asarray(r[key], np.float64) for r in ranks) / len(ranks) for ranks in (old, new)
        ]
        slack = 2.0**-22 * sum(np.abs(np.asarray(r[key], np.float64)) for r in new) + 1e-30
        assert (np.abs(sums[0] - sums[1]) <= slack).all(), f"lost with the world's size: {key}"
