"""Every registered part, as the conformance suite makes it: a new part is one line here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvd_sparse.registry import Registry


@dataclass(frozen=True)
class Case:
    """A part and its options; selectors are also given a density by the tests."""

    id: str
    options: dict[str, Any] = field(default_factory=dict)

    def create(self, registry: Registry, **options: Any) -> Any:
        return registry.create(self.id, **self.options, **options)

    def __str__(self) -> str:
        return "-".join([self.id, *(f"{name}={value}" for name, value in self.options.items())])


SELECTORS = (
    Case("ldte"),
    Case("ldte_bs"),
    Case("ldte_bs", {"search": "bisection"}),
    Case("ldte_bs", {"tolerance": (0.95, 1.05), "max_passes": 20}),
    Case("topk"),
)
MEMORIES = (Case("error_feedback"),)
CODECS = (Case("index_value"),)
EXCHANGES = (Case("allgather"),)
SCHEDULES = (Case("constant", {"value": 0.25}),)
ENGINES = (Case("numpy"),)
