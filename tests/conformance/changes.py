"""Changes of functions, of which mutants are made, and of kernels."""

import __future__

import inspect
import textwrap


def text(old, new):
    """Return a change that replaces ``old`` by ``new`` in a function's source."""

    def change(function):
        source = textwrap.dedent(inspect.getsource(function))
        assert old in source, f"{function.__qualname__} no longer has {old!r}: change the mutant"
        body = textwrap.indent(source.replace(old, new), "    ")
        name, cells, made = function.__name__, function.__closure__ or (), {}
        closure = dict(zip(function.__code__.co_freevars, cells))
        owner = closure["__class__"].cell_contents if "__class__" in closure else None
        code = f"def make(__class__):\n{body}\n    return {name}\n"  # ``super()`` reads __class__
        flags = __future__.annotations.compiler_flag
        exec(compile(code, f"<mutant of {name}>", "exec", flags), function.__globals__, made)
        return made["make"](owner)

    return change


def result(spoil):
    """Return a change that makes a function return ``spoil(result, *arguments)``."""

    def change(function):
        def changed(*arguments):
            return spoil(function(*arguments), *arguments)

        return changed

    return change


def instead(other):
    """Return a change that puts ``other`` in the place of what was there."""
    return lambda _: other


class Wrapped:
    """Kernels whose calls are made by ``call(name, kernel, arguments)``."""

    def __init__(self, kernels, call):
        self._kernels, self._call = kernels, call

    def __getattr__(self, name):
        kernel = getattr(self._kernels, name)
        return lambda *arguments: self._call(name, kernel, arguments)
