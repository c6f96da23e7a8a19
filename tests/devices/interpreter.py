"""Makes Triton's interpreter faster, in a process that does nothing else with Triton."""

import inspect

from triton import language as tl
from triton.runtime import interpreter


def change_the_language_once():
    """Let the interpreter replace the functions of Triton's language only once.

    By default, the interpreter replaces them before every program and before each function that a
    program calls, and restores them afterwards. For small programs, this takes most of the time.
    The results of programs do not change.
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
