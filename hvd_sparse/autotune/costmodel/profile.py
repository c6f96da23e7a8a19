"""When the gradients of a backward pass become ready, and how large they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from hvd_sparse.checks import is_number
from hvd_sparse.errors import InvalidOption

MIN_NUMEL = 1024
"""Below it a tensor goes dense where a file does not say whether it is compressed: as
``Configuration.min_numel``."""


@dataclass(frozen=True)
class Layer:
    """One tensor of a model.

    Attributes
    ----------
    name : its key
    numel : entries of its gradient
    backward_s : seconds of the backward pass between the gradient before it and its own
    is_sparse : whether it is compressed; the others go through Horovod's allreduce
    """

    name: str
    numel: int
    backward_s: float
    is_sparse: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidOption(f"a layer is called {self.name!r}: a text of at least one letter")
        if isinstance(self.numel, bool) or not isinstance(self.numel, int) or self.numel < 1:
            raise InvalidOption(
                f"layer {self.name!r} has numel {self.numel!r}: a whole number of entries, 1 or "
                "more"
            )
        if not is_number(self.backward_s) or self.backward_s < 0:
            raise InvalidOption(
                f"layer {self.name!r} has backward_s {self.backward_s!r}: seconds, 0 or more"
            )


@dataclass(frozen=True)
class Profile:
    """The layers of a model **in the order of the backward pass**: the gradient that is ready first
    comes first.

    Attributes
    ----------
    layers : at least one, of different names
    other_s : seconds of a step outside the backward pass that do not depend on what is sent:
        forward pass, optimizer
    is_apart : another processor (a GPU) runs the backward pass than the one that selects, which so
        does not hold it up
    """

    layers: tuple[Layer, ...]
    other_s: float = 0.0
    is_apart: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        names = [layer.name for layer in self.layers]
        if not names:
            raise InvalidOption("a profile has no layers: give at least one")
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidOption(f"a profile names layers twice: {', '.join(twice)}")
        if not is_number(self.other_s) or self.other_s < 0:
            raise InvalidOption(f"other_s of a profile is {self.other_s!r}: seconds, 0 or more")

    @property
    def numel(self) -> int:
        """Entries of all layers."""
        return sum(layer.numel for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Seconds of the whole backward pass."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def ready_s(self) -> list[float]:
        """Seconds after the start of the backward pass at which each gradient is ready, nothing
        else at work."""
        return list(accumulate(layer.backward_s for layer in self.layers))

    def scaled(self, backward_s: float) -> Profile:
        """The same profile on a processor on which the backward pass takes so long; ``other_s``
        changes in proportion."""
        if not is_number(backward_s) or backward_s < 0:
            raise InvalidOption(f"backward_s is {backward_s!r}: seconds, 0 or more")
        factor = backward_s / self.backward_s if self.backward_s else 0.0
        layers = tuple(
            replace(layer, backward_s=layer.backward_s * factor) for layer in self.layers
        )
        return replace(self, layers=layers, other_s=self.other_s * factor)

    @cached_property
    def compressed(self) -> Profile:
        """The layers that are compressed alone; what the others take falls to the next, at the end
        to the last.

        InvalidOption where there are none.
        """
        layers = [layer for layer in self.layers if layer.is_sparse]
        seconds = self.folded([layer.backward_s for layer in self.layers])
        return replace(
            self, layers=tuple(replace(layer, backward_s=s) for layer, s in zip(layers, seconds))
        )

    def folded(self, seconds: Sequence[float]) -> list[float]:
        """Of the compressed layers alone, from those of every layer: what others take falls to the
        next, at the end to the last.

        InvalidOption where none is compressed.
        """
        sums: list[float] = []
        waiting_s = 0.0
        for layer, taken_s in zip(self.layers, seconds):
            waiting_s += taken_s
            if layer.is_sparse:
                sums.append(waiting_s)
                waiting_s = 0.0
        if not sums:
            raise InvalidOption(
                "no layer of this profile is compressed: all are small or of one dimension"
            )
        sums[-1] += waiting_s
        return sums

    def idle_s(self, work_s: Sequence[float]) -> list[float]:
        """Seconds that the processor that selects waits before each gradient, when it is busy for
        ``work_s`` behind each.

        Where the backward pass runs there too, all of it: the seconds before each gradient.
        """
        if not self.is_apart:
            return [layer.backward_s for layer in self.layers]
        waits, free_s = [], 0.0
        for at_s, busy_s in zip(self.ready_s, work_s):
            waits.append(max(0.0, at_s - free_s))
            free_s = max(free_s, at_s) + busy_s
        return waits

    def to_json(self) -> str:
        """Text that ``from_json`` turns back into an equal profile."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """From an object with "layers", in the order of the backward pass, or from their list
        alone.

        Of a layer "name" and "numel" or "shape" are needed.  Without "is_sparse" a layer is
        compressed if it has 1,024 entries and, where its shape is known, more than one dimension;
        without "backward_s" it takes its share of a second by entries, for ``scaled``.
        InvalidOption says what is wrong.
        """
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidOption(f"no JSON: {error}") from None
        described = document.get("layers") if isinstance(document, Mapping) else document
        if not isinstance(described, list) or not all(
            isinstance(each, Mapping) for each in described
        ):
            raise InvalidOption(
                'a profile is {"layers": [{"name": ..., "numel": ..., "backward_s": ...}, ...]}'
            )
        other_s = document.get("other_s", 0.0) if isinstance(document, Mapping) else 0.0
        is_apart = bool(document.get("is_apart", False)) if isinstance(document, Mapping) else False
        return cls(tuple(_layers(described)), other_s, is_apart)


def _layers(described: Iterable[Mapping[str, Any]]) -> Iterable[Layer]:
    described = list(described)
    timed = ["backward_s" in each for each in described]
    if any(timed) and not all(timed):
        raise InvalidOption(
            "some layers have backward_s and some have none: give it for all or for none"
        )
    sizes = [_numel(each) for each in described]
    total = sum(sizes)
    for each, numel in zip(described, sizes):
        unknown = sorted(set(each) - {"name", "numel", "shape", "backward_s", "is_sparse"})
        if unknown:
            raise InvalidOption(
                f"layer {each.get('name')!r} has unknown keys: {', '.join(unknown)}"
            )
        is_sparse = numel >= MIN_NUMEL and len(each.get("shape", (0, 0))) > 1
        yield Layer(
            each.get("name", ""),
            numel,
            each.get("backward_s", numel / total),
            bool(each.get("is_sparse", is_sparse)),
        )


def _numel(described: Mapping[str, Any]) -> int:
    """InvalidOption for what is no size."""
    name, shape = described.get("name"), described.get("shape")
    if shape is None:
        numel = described.get("numel")
    elif isinstance(shape, list) and all(
        isinstance(size, int) and not isinstance(size, bool) for size in shape
    ):
        numel = 1
        for size in shape:
            numel *= size
    else:
        numel = None
    if isinstance(numel, bool) or not isinstance(numel, int) or numel < 1:
        raise InvalidOption(
            f"layer {name!r} has no size: give numel, a whole number of 1 or more, or shape, a "
            "list of them"
        )
    return numel
