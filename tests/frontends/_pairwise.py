"""A small set of cases in which every pair of choices occurs."""

import itertools
import random


def pairs_of(row):
    return set(itertools.combinations(sorted(row.items()), 2))


def all_pairs(factors):
    return {
        ((one, first), (other, second))
        for one, other in itertools.combinations(sorted(factors), 2)
        for first in factors[one]
        for second in factors[other]
    }


def covering_cases(factors, attempts=60):
    """Return cases that contain every pair of choices; they are the same on all ranks. Each case
    begins with a missing pair, and the best of ``attempts`` random completions is taken."""
    draw = random.Random(0)
    missing = all_pairs(factors)
    cases = []
    while missing:
        seed = dict(min(missing, key=repr))
        candidates = [
            {name: seed.get(name, draw.choice(list(choices))) for name, choices in factors.items()}
            for _ in range(attempts)
        ]
        best = max(candidates, key=lambda row: len(pairs_of(row) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases
