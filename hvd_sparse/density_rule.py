"""Densities that differ between tensors: by names and globs, by a function, or measured."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Union, cast

from hvd_sparse.checks import check_density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import TensorSpec

HIDING = "hiding"
"""Value of ``density`` with which a run measures how much it can send during the backward pass."""
C_MAX = 1000.0
"""Largest compression ratio (1 / density) of "hiding", unless another one is given."""

Chooser = Callable[[str, tuple[int, ...]], float]
"""A function of a tensor's name and shape that returns its density."""


@dataclass(frozen=True)
class DensityRule:
    """A density for each tensor.

    A tensor has the density of the pattern that equals its name, or else of the matching glob with
    the most characters that are not wildcards. The order of the patterns has no effect. For
    example, ``{"*": 0.001, "fc.*": 0.01, "fc.bias": 1.0}`` gives ``fc.weight`` the density 0.01.

    patterns : pairs of a name or glob and its density, sorted
    chooser : a function of a tensor's name and shape, given in place of patterns. ``bound`` calls
        it for each tensor and stores its results as patterns
    table : densities by tensor name; empty until the tensors are known
    mean : mean density over the entries of all tensors; None until the tensors are known
    c_max : largest compression ratio for "hiding", the rule that measures how much a run can send
        during the backward pass: every tensor has the density 1 / c_max until densities are
        computed from measured times. None for all other rules
    is_measured : whether the densities in ``table`` were computed from measured times
    """

    patterns: tuple[tuple[str, float], ...]
    chooser: Chooser | None = None
    table: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    mean: float | None = field(default=None, compare=False, repr=False)
    c_max: float | None = None
    is_measured: bool = field(default=False, compare=False, repr=False)

    def bound(self, compressed: Sequence[TensorSpec], names: Sequence[str]) -> DensityRule:
        """Return a copy with ``table`` and ``mean`` for the compressed tensors. ``names`` has the
        names of all tensors. Raises InvalidOption if a compressed tensor has no density, two globs
        with different densities match it equally well, or a pattern matches no tensor."""
        for pattern, _ in self.patterns:
            if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
                raise InvalidOption(
                    f"density is given for {pattern!r}, but no tensor has this name; there are: "
                    f"{', '.join(names)}"
                )
        table = {spec.key: self.density_of(spec) for spec in compressed}
        patterns = self.patterns if self.chooser is None else tuple(sorted(table.items()))
        numel = sum(spec.numel for spec in compressed)
        asked = sum(table[spec.key] * spec.numel for spec in compressed)
        mean = asked / numel if numel else 1.0
        return replace(self, patterns=patterns, chooser=None, table=table, mean=mean)

    def density_of(self, spec: TensorSpec) -> float:
        """Return a tensor's density. Raises InvalidOption if the rule has none for it, or if globs
        with different densities match equally well."""
        if spec.key in self.table:
            return self.table[spec.key]
        if self.chooser is not None:
            density = self.chooser(spec.key, spec.shape)
            return check_density(density, f"density of tensor {spec.key!r}")
        exact = dict(self.patterns)
        if spec.key in exact:
            return exact[spec.key]
        fitting = [
            (sum(letter not in "*?[]" for letter in pattern), pattern, density)
            for pattern, density in self.patterns
            if fnmatchcase(spec.key, pattern)
        ]
        if not fitting:
            raise InvalidOption(
                f"density is {exact!r}, which does not cover tensor {spec.key!r}: add its name, "
                'or "*" for all others, as in {"*": 0.001}'
            )
        most = max(fitting)
        rivals = [p for plain, p, d in fitting if plain == most[0] and d != most[2]]
        if rivals:
            raise InvalidOption(
                f"density is given for {most[1]!r} and for {rivals[0]!r}, which both match tensor "
                f"{spec.key!r} equally well: add the tensor's own name"
            )
        return most[2]

    def plain(self) -> dict[str, float] | str:
        """Return the rule as JSON-serializable data: a mapping, "hiding", or for example
        "hiding:300". Raises InvalidOption if the rule is a function that has not been called yet,
        because its densities are not known."""
        if self.c_max is not None:
            return HIDING if self.c_max == C_MAX else f"{HIDING}:{self.c_max:g}"
        if self.chooser is not None:
            raise InvalidOption(
                f"density is the function {self.chooser!r}, which a configuration can only store "
                "as the densities of named tensors: call this after the compressor knows its "
                "tensors (in TensorFlow after the first step, or after resolve())"
            )
        return dict(self.patterns)


Density = Union[float, Mapping[str, float], Chooser, DensityRule, str]
"""The option ``density``: a number, a mapping, a function of name and shape, or "hiding"."""


def read_hiding(text: str, where: str = "density") -> float:
    """Return the largest compression ratio that a text gives: 300 for "hiding:300", the default for
    "hiding". Raises InvalidOption for any other text; the message calls the option ``where``."""
    name, colon, ratio = text.partition(":")
    try:
        c_max = float(ratio) if colon else C_MAX
    except ValueError:
        c_max = math.nan
    if name != HIDING or not (math.isfinite(c_max) and c_max >= 1.0):
        raise InvalidOption(
            f"{where} is {text!r}: give the fraction of entries to send, a number in (0, 1]; for "
            "example, 0.001 sends one entry in a thousand. Other forms are densities by tensor "
            'name, a function, and "hiding", optionally with the largest compression ratio, as '
            'in "hiding:300"'
        )
    return c_max


def check_rule(density: Density, where: str) -> float | DensityRule:
    """Return the option ``density`` as a float or a ``DensityRule``. Raises InvalidOption for an
    invalid value; the message calls the option ``where``."""
    if isinstance(density, DensityRule):
        return density
    if isinstance(density, str):
        c_max = read_hiding(density, where)
        return DensityRule((("*", 1.0 / c_max),), c_max=c_max)
    if isinstance(density, Mapping):
        if not density or not all(isinstance(name, str) and name for name in density):
            raise InvalidOption(
                f'{where} is {density!r}: give names or globs of tensors, as in {{"*": 0.001}}'
            )
        told = {name: check_density(d, f"{where} for {name!r}") for name, d in density.items()}
        return DensityRule(tuple(sorted(told.items())))
    if callable(density):
        try:
            inspect.signature(density).bind("name", (1,))
        except ValueError:  # some built-in functions have no signature
            pass
        except TypeError as error:
            raise InvalidOption(
                f"{where} is a function that cannot be called with a tensor's name and shape "
                f"({error}): define it as in density=lambda name, shape: 0.01"
            ) from None
        return DensityRule((), density)
    return check_density(density, where)


def number_of(density: Density, owner: str) -> float:
    """Return ``density`` if it is a number. Raises InvalidOption if it is a rule; the message names
    the ``owner`` of the density, for example a selector."""
    if isinstance(density, DensityRule):
        raise InvalidOption(
            f"density of {owner} is a rule for several tensors: call at_density(...) with one "
            "tensor's density first, as compressors do"
        )
    return cast(float, density)
