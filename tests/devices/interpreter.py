"""Triton's interpreter, in a process that does nothing else with Triton."""

import inspect

from triton import language as tl
from triton.runtime import interpreter


def change_the_language_once():
    """Let what the interpreter puts in the language's place stay there.

    It looks through all names of the language before every program, and again before each function
    that a program calls, to put its own in their place and to take them back behind it: most of
    what small programs cost.  What a program computes is the same.
    """
    own, changed = interpreter._patch_lang, set()

    def change(function):
        values = function.__globals__.values()
        seen = frozenset(v.__name__ for v in values if inspect.ismodule(v) and v in (tl, tl.core))
        if seen in changed:
            return interpreter._LangPatchScope()  # of no changes
        changed.add(seen)
        scope = own(function)
        scope._changes.clear()
        return scope

    interpreter._patch_lang = change
