"""The named methods: each paper as a choice of five parts, with the authors' defaults.

Both frontends' ``Compression`` inherit these, so that an option means the same in both.
"""

from __future__ import annotations

from typing import Any

from .configuration import Configuration
from .selectors.ldte import Ldte
from .selectors.ldte_bs import LdteBs
from .selectors.topk import TopK


class Methods:
    """What ``Compression`` offers.  ``params`` are the frontend's: see its ``Compression``.

    Options that every method takes
    -------------------------------
    min_numel=1024 : tensors with fewer entries go dense
    compress_1d=False : also compress tensors of one dimension (biases, norms), which else go dense
    process_set=hvd.global_process_set : the one given to Horovod
    name=None : part of every collective's name; by default made from the tensors' names and shapes
    engine=None : id of the kernels; the best that is installed by default
    rollback=True : a failed step leaves no trace, for a second buffer of the residual's size;
        without it the gradient of a failed step stays in the residual
    allow_dense=True : where dense moves no more bytes, the step runs dense, residual included
    telemetry=False : send the norm of the residual along (one more pass)
    timeout_s=600 : seconds after which a collective that did not finish is an error; None waits for ever
    """

    @classmethod
    def _create(cls, params: Any, configuration: Configuration, process_set: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def build(cls, params: Any, *, selector: Any, process_set: Any = None, **options: Any) -> Any:
        """Compose freely.

        Parameters
        ----------
        params : the tensors to compress
        selector, memory, codec, exchange, schedule : parts, as an id, ``{"id": ..., option: value}`` or an object
        options : the common ones, above
        """
        return cls._create(params, Configuration.create(selector=selector, **options), process_set)

    @classmethod
    def from_config(cls, params: Any, config: dict[str, Any], *, process_set: Any = None) -> Any:
        """The compressor whose ``config()`` this is."""
        return cls._create(params, Configuration.create(**config), process_set)

    @classmethod
    def ldte_bs(
        cls,
        params: Any,
        *,
        density: float,
        search: str = "log_count",
        tolerance: tuple[float, float] = (0.8, 1.3),
        max_passes: int = 16,
        warm_start: bool = True,
        **options: Any,
    ) -> Any:
        """LDTE-BS: a Laplace threshold estimate, corrected by binary search.  Paper: chen2021ldte.

        density : part of the entries sent, in (0, 1]; the others as in ``core.selectors.ldte_bs.LdteBs``
        """
        selector = LdteBs(density, search=search, tolerance=tolerance, max_passes=max_passes, warm_start=warm_start)
        return cls.build(params, selector=selector, **options)

    @classmethod
    def ldte(cls, params: Any, *, density: float, cap: float = 8.0, **options: Any) -> Any:
        """LDTE: the Laplace threshold estimate alone.  Paper: chen2021ldte.

        density : part of the entries asked for, in (0, 1]; the count sent is whatever the estimate gives, below cap * k
        """
        return cls.build(params, selector=Ldte(density, cap=cap), **options)

    @classmethod
    def topk(cls, params: Any, *, density: float, **options: Any) -> Any:
        """Exact top-k of every tensor, with error feedback: the yardstick.  Paper: aji2017sparse."""
        return cls.build(params, selector=TopK(density), **options)


METHODS = {"ldte_bs": "chen2021ldte", "ldte": "chen2021ldte", "topk": "aji2017sparse"}
"""Named methods and their papers."""
