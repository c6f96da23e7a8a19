"""``Compression.auto``: nothing is lost however the ways change, and all ranks take the same
one."""

from __future__ import annotations

import itertools
from typing import Any

import horovod.torch as hvd
import numpy as np
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted, caught
from _torch_cases import digest_of
from _torch_laws import Ledger

from hvd_sparse.torch import Compression

SHAPES = {"wide": (16, 40), "tall": (60, 5), "one": (30,)}
cases = Cases()


def ledger_of(name: str, **options: Any) -> Ledger:
    return Ledger(
        SHAPES,
        lambda named: Compression.auto(named, density=0.05, name=name, **SPARSE_ONLY, **options),
    )


@cases
def ways_change(name: str) -> dict[str, Any]:
    ledger = ledger_of(name, codec="index_value")
    ledger.compressor._policy.trial = Scripted(SCRIPT)
    lost, replicas, waiting = [], set(), []
    for step in range(len(SCRIPT)):
        ledger.take_step(ledger.gradients(step))
        lost.append(ledger.lost_entries())
        gradients = digest_of([parameter.grad for parameter in ledger.parameters.values()])
        replicas.add(len(set(hvd.allgather_object(gradients, name=f"{name}.replicas"))))
        tensors = ledger.compressor.state_dict()["tensors"].values()
        waiting.append(sum(int(tensor["arrays"]["residual"].count_nonzero()) for tensor in tensors))
    stats = ledger.compressor.stats()
    ledger.compressor.close()
    return {
        "lost": lost,
        "replicas": sorted(replicas),
        "waiting": waiting,
        "sparse_steps": stats["sparse_steps"],
        "dense_steps": stats["dense_steps"],
    }


@cases
def a_trial_ends_alike_on_all_ranks(name: str) -> dict[str, Any]:
    ledger = ledger_of(name, trial_steps=2, review_every=8)
    agree, asked = ledger.compressor._policy.agree, []

    def listening(owner: Any, mine: np.ndarray) -> np.ndarray:
        asked.append(ledger.compressor.verdict is None)
        return agree(owner, mine)

    ledger.compressor._policy.agree = listening
    verdicts, ways = [], set()
    for step in range(40):
        ledger.take_step(ledger.gradients(step))
        verdicts.append(str(ledger.compressor.verdict))
        ways |= set(getattr(ledger.compressor.verdict, "seconds", ()))
    told = hvd.allgather_object(verdicts, name=f"{name}.verdicts")
    ledger.compressor.close()
    return {
        "alike": all(one == told[0] for one in told),
        "verdicts": len(set(verdicts)),
        "ways": sorted(ways),
        "asked": asked,
    }


@cases
def a_state_is_loaded_on_a_dense_way(name: str) -> dict[str, Any]:
    """What was kept back at a checkpoint is sent by the next step, though it is dense."""
    ledger = ledger_of(name, codec="index_value")
    ledger.compressor._policy.trial = Scripted(["sparse"] * 3 + ["dense"] * 4)
    for step in range(6):
        if step == 3:
            saved = ledger.compressor.state_dict()
        ledger.take_step(ledger.gradients(step))
    ledger.compressor.load_state_dict(saved)
    waiting = sum(
        int(tensor["arrays"]["residual"].count_nonzero()) for tensor in saved["tensors"].values()
    )
    ledger.take_step(ledger.gradients(6))
    left = ledger.compressor.state_dict()["tensors"].values()
    ledger.compressor.close()
    return {
        "waiting": waiting,
        "left": sum(int(tensor["arrays"]["residual"].count_nonzero()) for tensor in left),
    }


@cases
def groups_make_no_difference(name: str) -> dict[str, Any]:
    """The same steps with small neighbours together, all alone, in one message, and changing in
    mid-run; and each of these with groups of Horovod's own, which are others."""
    digests = []
    plans_of_ours = ([None], [3], [1], [2, [["wide", "one"]], 3])
    for number, (theirs, plans) in enumerate(
        itertools.product((None, 2, [["one", "wide"]]), plans_of_ours)
    ):
        options = {"density": 0.05, "name": f"{name}.{number}", "groups": plans[0], **SPARSE_ONLY}
        ledger = Ledger(
            SHAPES, lambda named, options=options: Compression.ldte_bs(named, **options), theirs
        )
        for step in range(6):
            if len(plans) > 1:
                ledger.compressor.regroup(plans[step % len(plans)])
            ledger.take_step(ledger.gradients(step))
        digests.append(digest_of(ledger._applied.values()))
        ledger.compressor.close()
    return {"digests": digests, "buckets": len(ledger.compressor.step.buckets)}


@cases
def other_groups_on_one_rank(name: str) -> str:
    ledger = Ledger(
        SHAPES, lambda named: Compression.ldte_bs(named, density=0.05, name=name, **SPARSE_ONLY)
    )
    said = caught(ledger.compressor.regroup, 1 if hvd.rank() == 0 else 2)
    ledger.compressor.close()
    return said
