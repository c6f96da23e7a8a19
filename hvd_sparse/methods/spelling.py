"""Methods on command lines: a name, and options after commas."""

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
"""A comma outside brackets."""


@dataclass(frozen=True)
class SpelledMethod:
    """A named method and its options, as read from a command line.

    Attributes
    ----------
    name : name of the method
    options : the options, by name
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)

    @property
    def takes_density(self) -> bool:
        """Whether the method has a density."""
        return "density" in inspect.signature(getattr(Methods, self.name)).parameters

    def create(self, compression: type[Methods], params: object, **options: object) -> Value:
        """Create the compressor with this method of ``compression``.

        Parameters
        ----------
        compression : a frontend's ``Compression``
        params : the tensors to compress
        options : further options; those on the command line take precedence
        """
        return getattr(compression, self.name)(params, **{**options, **self.options})


def read_method(text: str) -> SpelledMethod:
    """Read a method and its options from a text, for example ``ldte_bs,variant=paper``.

    Parameters
    ----------
    text : a method's name, followed by ``,option=value`` for each option; values that are not
        Python literals are strings

    Raises
    ------
    UnknownName : the method is unknown
    InvalidOption : an option is not of the form OPTION=VALUE

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
                f"{each!r} of method {text!r} is no option: write OPTION=VALUE after the comma, "
                "as in ldte_bs,variant=paper"
            )
        options[option] = _value(value)
    return SpelledMethod(name, options)


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
