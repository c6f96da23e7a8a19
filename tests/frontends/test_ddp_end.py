"""A program that has trained with the hook ends well, whatever Gloo's threads are at."""

from __future__ import annotations

import pytest
from harness import launch

RANKS = (2, 3)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_interpreter_ends_when_the_threads_have_let_go(ranks: int) -> None:
    launch("frontends/ddp_end.py", ranks, "torchrun").check()
