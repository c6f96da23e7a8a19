"""The type of the parsers to which a sub-command adds its own."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The result of ``add_subparsers``, which has no public name."""
