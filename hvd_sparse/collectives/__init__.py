"""Implementations of ``collectives.contract``, one file for each communication library. Horovod's
own wait has no time limit, and the wait of torch.distributed ends the process group when its limit
is reached. Therefore ``contract.sleep_until`` polls instead."""

from __future__ import annotations

from hvd_sparse.errors import ExchangeTimeout


def unfinished(library: str, name: str, timeout_s: float | None) -> ExchangeTimeout:
    return ExchangeTimeout(
        f"{library}'s {name!r} did not finish in {timeout_s} s: some rank has not submitted it or "
        "has stopped; look at the ranks' output, or raise timeout_s"
    )
