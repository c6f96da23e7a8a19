"""Profiles: the sizes of a model's gradients, and the times at which they become ready."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from hvd_sparse.checks import is_number
from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import TensorSpec

MIN_NUMEL = 1024
"""Entries below which a tensor goes dense where a file does not say: as
``Configuration.min_numel``."""
Described = Mapping[str, Any]
"""A layer in a file.  Any, as it is JSON: ``Layer`` checks the values."""


@dataclass(frozen=True)
class Layer:
    """One tensor of a model.

    Attributes
    ----------
    name : its key
    numel : entries of its gradient
    backward_s : seconds of the backward pass between the gradient before it and its own
    is_sparse : it is compressed; other tensors go through Horovod's allreduce

    Raises
    ------
    InvalidOption
        If a value is out of its range.
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
    """The layers of a model **in the order of the backward pass**: the first ready gradient first.

    Attributes
    ----------
    layers : at least one, of different names
    other_s : seconds of a step outside the backward pass that do not depend on the method: forward
        pass, optimizer
    is_apart : another processor (a GPU) runs the backward pass than the one that selects, so that
        selecting does not hold it up

    Raises
    ------
    InvalidOption
        If there is no layer, a name occurs twice, or a value is out of its range.
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
        """Return the number of entries of all layers."""
        return sum(layer.numel for layer in self.layers)

    @property
    def specs(self) -> list[TensorSpec]:
        """Return the layers as tensors, of two dimensions where they are compressed."""
        shapes = [(1, x.numel) if x.is_sparse else (x.numel,) for x in self.layers]
        return [TensorSpec(x.name, shape, "float32") for x, shape in zip(self.layers, shapes)]

    @property
    def backward_s(self) -> float:
        """Return the seconds of the whole backward pass."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def ready_s(self) -> list[float]:
        """Return the seconds from the start of the backward pass to each gradient, with nothing
        else at work."""
        return list(accumulate(layer.backward_s for layer in self.layers))

    def scaled(self, backward_s: float) -> Profile:
        """Return the profile on a processor of another speed; ``other_s`` changes in proportion.

        Parameters
        ----------
        backward_s : seconds of the whole backward pass there

        Raises
        ------
        InvalidOption
            If it is no number of 0 or more.
        """
        if not is_number(backward_s) or backward_s < 0:
            raise InvalidOption(f"backward_s is {backward_s!r}: seconds, 0 or more")
        # a profile without times has nothing to stretch
        factor = backward_s / self.backward_s if self.backward_s else 0.0
        layers = tuple(
            replace(layer, backward_s=layer.backward_s * factor) for layer in self.layers
        )
        return replace(self, layers=layers, other_s=self.other_s * factor)

    @cached_property
    def compressed(self) -> Profile:
        """Return the profile of the compressed layers alone; seconds are added up as by ``folded``.

        Raises
        ------
        InvalidOption
            If no layer is compressed.
        """
        layers = [layer for layer in self.layers if layer.is_sparse]
        seconds = self.folded([layer.backward_s for layer in self.layers])
        return replace(
            self, layers=tuple(replace(layer, backward_s=s) for layer, s in zip(layers, seconds))
        )

    def folded(self, seconds: Sequence[float]) -> list[float]:
        """Return the seconds of the compressed layers, to which those of the others are added.

        The seconds of a layer that is not compressed count with the next compressed one, at the end
        with the last.

        Parameters
        ----------
        seconds : of every layer

        Raises
        ------
        InvalidOption
            If no layer is compressed.
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
        """Return the seconds for which the selecting processor waits before each gradient.

        Where the backward pass runs on the same processor, these are all of its seconds.

        Parameters
        ----------
        work_s : seconds for which the selecting processor is busy behind each gradient
        """
        if not self.is_apart:
            return [layer.backward_s for layer in self.layers]
        waits, free_s = [], 0.0
        for at_s, busy_s in zip(self.ready_s, work_s):
            waits.append(max(0.0, at_s - free_s))
            # a gradient that comes while the last is worked on waits, and the one after it too
            free_s = max(free_s, at_s) + busy_s
        return waits

    def to_json(self) -> str:
        """Return a text from which ``from_json`` makes an equal profile."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Return the profile that a JSON text describes.

        A layer needs "name", and "numel" or "shape".  Without "is_sparse" a layer is compressed if
        it has 1,024 entries and, where its shape is known, more than one dimension.  Without
        "backward_s" it takes its share of a second by entries, for ``scaled``.

        Parameters
        ----------
        text : object with "layers", in the order of the backward pass, or their list alone

        Raises
        ------
        InvalidOption
            If the text is no JSON, or describes no profile.
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


def _layers(described: Iterable[Described]) -> Iterable[Layer]:
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


def _numel(described: Described) -> int:
    """Return a layer's entries; raise InvalidOption if it has no size."""
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
