"""Methods, their options and densities, as they are written on command lines."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from dataclasses import dataclass, field
from typing import Any, Union

from hvd_sparse.density_rule import check_rule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.methods import Methods, check_method
from hvd_sparse.types import Value

BETWEEN_OPTIONS = re.compile(r",(?![^()\[\]{}]*[)\]}])")
"""A comma outside brackets, which separates two options."""

Spelled = Union[float, dict[str, float], str]
"""A density on a command line: a number, a mapping of names and globs, or "hiding"."""


@dataclass(frozen=True)
class SpelledMethod:
    """A named method and its options, read from a command line."""

    name: str
    options: dict[str, object] = field(default_factory=dict)

    @property
    def takes_density(self) -> bool:
        return "density" in inspect.signature(getattr(Methods, self.name)).parameters

    def create(self, compression: type[Methods], params: object, **options: object) -> Value:
        """Return the compressor that a frontend's ``Compression`` creates by this method. Options
        from the command line take precedence over ``options``."""
        return getattr(compression, self.name)(params, **{**options, **self.options})


def read_method(text: str) -> SpelledMethod:
    """Read a method's name, followed by ``,option=value`` for each of its options. A value that is
    not a Python literal is a string.

    Raises
    ------
    UnknownName : the method is unknown
    InvalidOption : the method is not a string, or an option is not of the form OPTION=VALUE

    Examples
    --------
    >>> read_method("ldte_bs,variant=paper,max_passes=20")
    SpelledMethod(name='ldte_bs', options={'variant': 'paper', 'max_passes': 20})
    """
    name, *rest = BETWEEN_OPTIONS.split(text)
    check_method(name)
    options: dict[str, object] = {}
    for each in rest:
        option, equals, value = each.partition("=")
        if not (option.isidentifier() and equals and value):
            raise InvalidOption(
                f"{each!r} of method {text!r} is no option: write OPTION=VALUE after the comma, "
                "as in ldte_bs,variant=paper"
            )
        options[option] = _value(value)
    return SpelledMethod(name, options)


def density_argument(text: str) -> Spelled:
    """Return the option ``density`` from its text, for ``argparse``: a number, a mapping of names
    and globs as a Python literal, "hiding", or "hiding:300", where 300 is the largest compression
    ratio.

    Raises
    ------
    ArgumentTypeError : the text has another form, or a density is not in (0, 1]

    Examples
    --------
    >>> density_argument("{'conv*': 0.01, '*': 0.001}")
    {'conv*': 0.01, '*': 0.001}
    """
    density: Spelled = _value(text.strip())
    try:
        rule = check_rule(density, "density")
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return rule if isinstance(rule, float) else density


def _value(text: str) -> Any:
    """Return a Python literal's value. A text that is no literal is returned as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
