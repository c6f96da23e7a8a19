"""Cases of ``Compression.auto``: no entry is lost, and all ranks choose the same candidate."""

from functools import partial

import numpy as np
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted
from _framework import NAME, fw
from _laws import SHAPES

from hvd_sparse.plan.policy import WAYS

hvd = fw.hvd
SPOILED_STEP = 3
"""Number of the first dense step, which sends the residuals."""
cases = Cases()


class AutoBooks(fw.Books):
    def __init__(self, name, trial=None, *, of_auto=None, **how):
        chosen = {"density": 0.05, "codec": "index_value", "name": name, **SPARSE_ONLY}
        chosen |= {"process_set": how.get("process_set", hvd.global_process_set), **(of_auto or {})}
        super().__init__(SHAPES, lambda params: fw.Compression.auto(params, **chosen), **how)
        if trial is not None:
            self.compressor._policy.trial = trial

    def take_auto_step(self, step):
        return self.take_step(self.gradients(step))

    def spoil(self, step):
        gradients = self.gradients(step)
        if fw.last_rank():
            gradients["tall"] = gradients["tall"] * np.nan
        self.run(gradients)


def change(name, *, spoiled=False, **options):
    books = AutoBooks(name, Scripted(SCRIPT), **options)
    lost, replicas, waiting = [], [], []
    for step in range(len(SCRIPT)):
        if spoiled and step == SPOILED_STEP:
            books.spoil(step)
        else:
            replicas.append(books.alike(fw.digest_of(books.take_auto_step(step))))
        lost.append(books.lost())
        waiting.append(books.waiting())
    stats = books.compressor.stats()
    books.compressor.close()
    kept = {key: stats[key] for key in ("sparse_steps", "dense_steps", "dense_bytes")}
    return {"lost": lost, "alike": all(replicas), "waiting": waiting, **kept}


cases["auto_changes_ways"] = change
if NAME == "tensorflow":
    for how, options in {
        "eagerly": {"as_function": False},
        "in_groups": {"groups": 2},
        "with_other_dtypes": {"dtypes": ["float16", "float64", "float32"]},
        "through_a_step_that_is_taken_back": {"spoiled": True},
    }.items():
        cases[f"auto_changes_ways_{how}"] = partial(change, **options)


@cases
def auto_decides_alike_by_its_own_clock(name):
    books = AutoBooks(name, of_auto={"trial_steps": 2, "review_every": 8})
    trial, asked, verdicts = books.compressor._policy.trial, [], []
    own = trial.next

    def listening(last_s, agree):
        def noted(mine):
            asked.append((len(verdicts), books.compressor.verdict is None))
            return agree(mine)

        return own(last_s, noted)

    trial.next = listening
    for step in range(40):
        books.take_auto_step(step)
        verdicts.append(str(books.compressor.verdict))
    result = {
        "alike": books.alike([verdicts, asked]),
        "ways": sorted({way for way in WAYS for verdict in verdicts if way in verdict}),
        "reviewed": any(not in_trial for _, in_trial in asked),
        "lost": books.lost(),
    }
    books.compressor.rejoin()
    result["again"] = books.compressor.verdict
    books.compressor.close()
    return result


@cases
def auto_sends_a_state_that_is_loaded_on_a_dense_way(name):
    books = AutoBooks(name, Scripted(["sparse"] * 3 + ["dense"] * 4))
    for step in range(6):
        if step == 3:
            saved, waiting = books.compressor.state_dict(), books.waiting()
        books.take_auto_step(step)
    books.compressor.load_state_dict(saved)
    books.take_auto_step(6)
    left = books.waiting()
    books.compressor.close()
    return {"waiting": waiting, "left": left}
