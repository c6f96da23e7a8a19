"""A small set of settings in which every pair of choices occurs."""

import itertools
import random
from types import SimpleNamespace


class Setting(SimpleNamespace):
    def __str__(self):
        return "-".join(map(str, vars(self).values()))


def pairs_of(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def covering_settings(factors, attempts=60):
    """Return settings that contain every pair of choices; they are the same on all ranks. Each
    begins with a missing pair, and the best of ``attempts`` random completions is taken."""
    draw = random.Random(0)
    rows = [dict(zip(factors, row)) for row in itertools.product(*factors.values())]
    missing = set().union(*map(pairs_of, rows))
    found = []
    while missing:
        seed = dict(min(missing, key=repr))
        candidates = [
            {name: seed.get(name, draw.choice(list(choices))) for name, choices in factors.items()}
            for _ in range(attempts)
        ]
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        missing -= pairs_of(best)
        found.append(Setting(**best))
    return found
