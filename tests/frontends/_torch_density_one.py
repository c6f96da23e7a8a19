"""Law 3: at density 1.0 training equals dense Horovod, over settings in which every two choices
meet."""

from __future__ import annotations

import copy
from typing import Any

from _common import SPARSE_ONLY
from _pairwise import covering_cases
from _torch_cases import flat_parameters
from _torch_training import (
    FACTORS,
    CountingCompression,
    Setting,
    distributed,
    make_network,
    train,
    train_alone,
    train_dense,
)

from hvd_sparse.torch import Compression

SETTINGS = {
    str(setting): setting for setting in (Setting(**row) for row in covering_cases(FACTORS))
}


def compare_with_dense(name: str, process_sets: dict[str, Any]) -> dict[str, Any]:
    """Train compressed, dense and alone from the same start; how far apart they end, and what was
    sent."""
    setting = SETTINGS[name]
    process_set = process_sets[setting.members]
    start = make_network(setting)
    model = copy.deepcopy(start)
    compressor = getattr(Compression, setting.method)(
        model.named_parameters(), density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    counting = CountingCompression(compressor)
    train(model, setting, distributed(model, setting, counting, process_set))
    stats = compressor.stats()
    compressor.close()
    dense = flat_parameters(train_dense(start, setting, process_set))
    scale = max(1.0, float(dense.abs().max()))
    return {
        "is_member": process_set.included(),
        "members": process_set.size() if process_set.included() else 0,
        "difference": float((flat_parameters(model) - dense).abs().max()) / scale,
        "effect": float((flat_parameters(train_alone(start, setting)) - dense).abs().max()) / scale,
        "nonzeros": counting.nonzeros,
        "numel": counting.numel,
        **{
            key: stats[key]
            for key in ("steps", "sparse_steps", "dense_steps", "dense_bytes", "entries_sent")
        },
    }
