"""The handshake: before the first step, all ranks compare their configurations and tensors."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from socket import gethostname

from hvd_sparse.collectives.contract import Gatherer, Placement
from hvd_sparse.configuration import LOCAL, Configuration
from hvd_sparse.errors import InvalidOption, RankMismatch
from hvd_sparse.kernels.arrays import keeps_subnormals
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
        # If only some ranks keep them, the ranks compute different sums.
        "subnormal numbers": "kept" if keeps_subnormals() else "treated as zero",
        "name": name,
        "configuration": {
            option: v for option, v in configuration.describe().items() if option not in LOCAL
        },
        "tensors": [f"{spec.key} {list(spec.shape)} {spec.dtype}" for spec in specs],
        "densities": [] if rule is None else [f"{key} {d!r}" for key, d in rule.table.items()],
    }


def handshake(document: Report, gatherer: Gatherer) -> None:
    """Compare all ranks' documents, which ``describe_rank`` makes from their options and tensors.
    Raises RankMismatch, which lists the documents' differences, and InvalidOption if an exchange
    that uses nodes takes ranks of different hosts for neighbours."""
    # All nodes in one line, because an error lists the lines that differ.
    told = {**document, "nodes": str(document["nodes"])}
    text = json.dumps(told, sort_keys=True, indent=0)
    # Digests first, because the documents are long and nearly always equal.
    digests = gatherer.tell_all(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        if document["nodes"] is not None:
            _check_hosts(document, gatherer.tell_all(gethostname()))
        return
    documents = [each.splitlines() for each in gatherer.tell_all(text)]
    raise RankMismatch(
        "the ranks run different programs or options: "
        + "; ".join(_differences(documents))
        + ". Build the same model and the same compressor, with the same options, on every rank"
    )


def _check_hosts(document: Report, hosts: Sequence[str]) -> None:
    """Raise InvalidOption if a node's ranks run on several hosts, one of which also has ranks of
    another node. A node may be a part of a host, or consist of whole hosts."""
    nodes = document["nodes"]
    for node in set(nodes):
        ranks = [rank for rank, its_node in enumerate(nodes) if its_node == node]
        its_hosts = sorted({hosts[rank] for rank in ranks})
        is_shared = sum(hosts.count(host) for host in its_hosts) > len(ranks)
        if len(its_hosts) > 1 and is_shared:
            raise InvalidOption(
                f"exchange {document['configuration']['exchange']['id']} takes the ranks "
                f"{', '.join(map(str, ranks))} for one node, but they run on the hosts "
                f"{', '.join(its_hosts)}, which also run other ranks: number the ranks host by "
                "host, as mpirun --map-by slot does, correct ranks_per_node, or use "
                "exchange='allgather'"
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
