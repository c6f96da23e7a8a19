"""Few cases in which every two choices meet."""

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
    """Cases that hold every pair, the same on all ranks: each next one starts from a pair that is
    missing and is the best of a number of random completions."""
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
