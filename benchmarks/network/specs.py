"""Names of our methods on the command line: ``ldte_bs,codec=block16,rollback=false``."""

from __future__ import annotations

import json
from typing import Any


def split(spec: str) -> tuple[str, dict[str, Any]]:
    """The id of a named method, and its options, whose values are JSON or plain."""
    id, *options = spec.split(",")
    return id, {key: _plain(value) for key, value in (option.split("=", 1) for option in options)}


def _plain(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
