"""Methods as command lines spell them: a name, and options behind commas."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from dataclasses import dataclass, field

from hvd_sparse.errors import InvalidOption, UnknownName
from hvd_sparse.methods import METHODS, Methods
from hvd_sparse.untyped import Value

BETWEEN_OPTIONS = re.compile(r",(?![^()\[\]{}]*[)\]}])")
"""A comma that is not inside brackets."""


@dataclass(frozen=True)
class SpelledMethod:
    """A named method and options for it, as read from a command line.

    Attributes
    ----------
    name : the named method's
    options : by name
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)

    @property
    def takes_density(self) -> bool:
        """Tell whether the method is told a density."""
        return "density" in inspect.signature(getattr(Methods, self.name)).parameters

    def create(self, compression: type[Methods], params: object, **options: object) -> Value:
        """Return the compressor that this method of ``compression`` makes.

        Parameters
        ----------
        compression : a frontend's ``Compression``
        params : the tensors to compress
        options : further ones, which those that were spelled out take the place of
        """
        return getattr(compression, self.name)(params, **{**options, **self.options})


def read_method(text: str) -> SpelledMethod:
    """Return the method and the options of a text such as ``ldte_bs,variant=paper``.

    Parameters
    ----------
    text : a method's name, and behind commas options with their values; a value is a number, True,
        False, None, something in brackets, or else a text

    Raises
    ------
    UnknownName : no method has that name
    InvalidOption : an option has no value

    Examples
    --------
    >>> read_method("ldte_bs,variant=paper,max_passes=20")
    SpelledMethod(name='ldte_bs', options={'variant': 'paper', 'max_passes': 20})
    """
    name, *rest = BETWEEN_OPTIONS.split(text)
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise UnknownName(f"no method is called {name!r}{hint}; there are: {', '.join(METHODS)}")
    options = {}
    for each in rest:
        option, equals, value = each.partition("=")
        if not (option.isidentifier() and equals and value):
            raise InvalidOption(
                f"{each!r} of method {text!r} is no option: write OPTION=VALUE behind the comma, "
                "as in ldte_bs,variant=paper"
            )
        options[option] = _value(value)
    return SpelledMethod(name, options)


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
