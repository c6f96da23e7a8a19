"""Names for what has no type of its own: users' things, and those of frameworks without types.

What they are is checked where they are used, and said in the errors there.
"""

from __future__ import annotations

from typing import Any

ProcessSet = Any
"""One of Horovod's process sets."""

GradScaler = Any
"""What multiplies the loss: a scaler of the framework's, or a callable that returns the scale."""

Params = Any
"""The tensors to compress, as the frontend takes them."""

Optimizer = Any
"""An optimizer of the framework's, or Horovod's around it."""

Option = Any
"""A user's choice, before it is checked."""

Settings = dict[str, Any]
"""Names and values that an optimizer holds."""

Report = dict[str, Any]
"""A JSON-able mapping, for users to read."""
