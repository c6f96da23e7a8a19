"""Methods whose threshold comes from a distribution that is fitted to the tensor."""

from __future__ import annotations

from hvd_sparse.methods.builder import Builder, Compressor, of_paper
from hvd_sparse.selectors.gaussian_k import GaussianK
from hvd_sparse.selectors.ldte import Ldte
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.selectors.sidco import Sidco


class FittedMethods(Builder[Compressor]):
    """Methods whose threshold comes from a distribution that is fitted to the tensor."""

    @classmethod
    @of_paper("chen2021ldte")
    def ldte_bs(
        cls,
        params: object,
        *,
        density: float,
        search: str = "log_count",
        tolerance: tuple[float, float] = (0.8, 1.3),
        max_passes: int = 16,
        warm_start: bool = True,
        **options: object,
    ) -> Compressor:
        """LDTE-BS: a Laplace threshold estimate, corrected by binary search.  Paper: chen2021ldte.

        In a steady state the search starts from the tensor's last threshold, so that the fit speaks
        at cold starts and misses alone. ``search="bisection", warm_start=False`` is the nearest to
        the paper, which fits at every step.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1]
        search, tolerance, max_passes, warm_start : as in ``selectors.ldte_bs.LdteBs``
        """
        selector = LdteBs(
            density,
            search=search,
            tolerance=tolerance,
            max_passes=max_passes,
            warm_start=warm_start,
        )
        return cls.build(params, selector=selector, **options)

    @classmethod
    @of_paper("chen2021ldte")
    def ldte(
        cls, params: object, *, density: float, cap: float = 8.0, **options: object
    ) -> Compressor:
        """LDTE: the Laplace threshold estimate alone.  Paper: chen2021ldte.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1]; the estimate decides the count sent
        cap : bounds the count sent at cap * k
        """
        return cls.build(params, selector=Ldte(density, cap=cap), **options)

    @classmethod
    @of_paper("shi2019understanding")
    def gaussian_k(
        cls, params: object, *, density: float, variant: str = "paper", **options: object
    ) -> Compressor:
        """Threshold from a fitted normal distribution.  Paper: shi2019understanding.

        With error feedback. Both tails share the density; the paper's Algorithm 1 takes the
        one-sided quantile.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1]
        variant : "paper" or "improved", as in ``GaussianK``
        """
        return cls.build(params, selector=GaussianK(density, variant=variant), **options)

    @classmethod
    @of_paper("abdelmoniem2021sidco")
    def sidco(
        cls,
        params: object,
        *,
        density: float,
        distribution: str = "exponential",
        stages: int = 1,
        **options: object,
    ) -> Compressor:
        """SIDCo: a threshold from fits of the tail, in stages.  Paper: abdelmoniem2021sidco.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1]
        distribution, stages : as in ``Sidco``
        """
        return cls.build(
            params, selector=Sidco(density, distribution=distribution, stages=stages), **options
        )
