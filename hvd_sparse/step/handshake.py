"""The handshake: before the first step, all ranks compare their configurations and tensors."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from hvd_sparse.collectives.contract import Gatherer, Placement
from hvd_sparse.configuration import LOCAL, Configuration
from hvd_sparse.errors import RankMismatch
from hvd_sparse.types import Report, TensorSpec
from hvd_sparse.version import __version__

LONGEST_REPORT = 12


def describe_rank(
    configuration: Configuration,
    specs: Sequence[TensorSpec],
    name: str,
    placement: Placement | None = None,
) -> Report:
    """Return a JSON-serializable document of all that the handshake compares between ranks."""
    rule = configuration.rule
    return {
        "nodes": None if placement is None else list(placement.nodes),
        "version": __version__,
        "subnormal numbers": "kept" if keeps_subnormals() else "treated as zero",
        "name": name,
        "configuration": {
            option: v for option, v in configuration.describe().items() if option not in LOCAL
        },
        "tensors": [f"{spec.key} {list(spec.shape)} {spec.dtype}" for spec in specs],
        "densities": [] if rule is None else [f"{key} {d!r}" for key, d in rule.table.items()],
    }


def keeps_subnormals() -> bool:
    """Return whether this thread keeps subnormal numbers, which ``torch.set_flush_denormal`` and
    compilers' fast-math flags turn into zero. If only some ranks keep them, the ranks compute
    different sums."""
    return bool((np.full(8, 1e-20, np.float32) * np.float32(1e-20) > 0).all())


def handshake(document: Report, gatherer: Gatherer) -> None:
    """Compare all ranks' documents, which ``describe_rank`` makes from their options and tensors.
    Raises RankMismatch, which lists the documents' differences."""
    text = json.dumps(document, sort_keys=True, indent=0)
    # Digests first, because the documents are long and nearly always equal.
    digests = gatherer.tell_all(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    documents = [each.splitlines() for each in gatherer.tell_all(text)]
    raise RankMismatch(
        "the ranks run different programs or options: "
        + "; ".join(_differences(documents))
        + ". Build the same model and the same compressor, with the same options, on every rank"
    )


def _differences(documents: list[list[str]]) -> list[str]:
    report = []
    for rank, lines in enumerate(documents):
        if lines == documents[0]:
            continue
        changes = [line for line in difflib.ndiff(documents[0], lines) if line[:2] in ("- ", "+ ")]
        words = [
            ("rank 0" if line[0] == "-" else f"rank {rank}") + " has " + line[2:].strip(" ,")
            for line in changes
        ]
        hidden = len(words) - LONGEST_REPORT
        report.append(
            ", ".join(words[:LONGEST_REPORT]) + (f" and {hidden} more" if hidden > 0 else "")
        )
    return report
