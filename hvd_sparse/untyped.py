"""Names for values without a type: users' objects, and those of untyped frameworks.

They are checked where they are used, and errors name their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ProcessSet = Any  # one of Horovod's process sets
GradScaler = Any  # the loss scaler: the framework's, or a callable that returns the scale
Params = Any  # the tensors to compress, in the form that the frontend accepts
Optimizer = Any  # an optimizer of the framework's, or Horovod's around it
Option = Any  # a user's choice, before it is checked
Context = Any  # that ``compress`` gives Horovod for ``decompress``
Value = Any  # of a framework without types: a token, a variable, a frame's local
Settings = dict[str, Any]  # names and values that an optimizer holds
Report = dict[str, Any]  # a JSON-able mapping, for users to read
State = Mapping[str, Any]  # a saved state or one of its tensors, before ``state_check`` checks it
