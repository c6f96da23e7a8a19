"""Names for values without a type: users' objects, and those of untyped frameworks.

They are checked where they are used, and errors name their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ProcessSet = Any
"""One of Horovod's process sets."""

GradScaler = Any
"""The loss scaler: the framework's, or a callable that returns the scale."""

Params = Any
"""The tensors to compress, in the form that the frontend accepts."""

Optimizer = Any
"""An optimizer of the framework's, or Horovod's around it."""

Option = Any
"""A user's choice, before it is checked."""

Settings = dict[str, Any]
"""Names and values that an optimizer holds."""

Report = dict[str, Any]
"""A JSON-able mapping, for users to read."""

Value = Any
"""A value of a framework without types: a token, a variable, a frame's local, what a function of
the graph is given."""

Context = Any
"""The context that ``compress`` gives Horovod for ``decompress``."""

State = Mapping[str, Any]
"""A saved state or one of its tensors, before ``state_check.check_form`` validates it."""
