"""Methods whose threshold comes from a distribution that is fitted to the tensor."""

from __future__ import annotations

from hvd_sparse.density_rule import Density
from hvd_sparse.methods.builder import Builder, Compressor, is_as_published, of_paper
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
        density: Density,
        variant: str = "ours",
        search: str | None = None,
        tolerance: tuple[float, float] = (0.8, 1.3),
        max_passes: int = 16,
        warm_start: bool | None = None,
        **options: object,
    ) -> Compressor:
        """LDTE-BS: a Laplace threshold estimate, corrected by binary search.  Paper: chen2021ldte.

        In a steady state the search starts from the tensor's last threshold, so that the fit speaks
        at cold starts and misses alone; the paper fits at every step, and halves the bracket.

        Left out: the paper's own bracket, tolerance and limit on halvings, which were not open to
        us.

        Parameters
        ----------
        density : part of the entries sent, in (0, 1], or by tensor
        variant : "ours", or "paper", which is ``search="bisection", warm_start=False``
        search, warm_start : as in ``selectors.ldte_bs.LdteBs``; None takes the variant's
        tolerance, max_passes : as there
        """
        published = is_as_published(variant, "ldte_bs")
        search = ("bisection" if published else "log_count") if search is None else search
        warm_start = not published if warm_start is None else warm_start
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
        cls, params: object, *, density: Density, cap: float = 8.0, **options: object
    ) -> Compressor:
        """LDTE: the Laplace threshold estimate alone.  Paper: chen2021ldte.

        Left out: the area relation by which the paper finds the key points of the curve, which was
        not open to us; the threshold is read off the fitted tail in closed form.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1], or by tensor; the estimate decides the
            count sent
        cap : bounds the count sent at cap * k
        """
        return cls.build(params, selector=Ldte(density, cap=cap), **options)

    @classmethod
    @of_paper("shi2019understanding")
    def gaussian_k(
        cls, params: object, *, density: Density, variant: str = "ours", **options: object
    ) -> Compressor:
        """Threshold from a fitted normal distribution.  Paper: shi2019understanding.

        With error feedback. Both tails share the density, as in the authors' code; their Algorithm
        1 takes the one-sided quantile, which is ``variant="paper"``.

        Left out: the code's densities that fall epoch by epoch, which are a ``schedule``.

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1], or by tensor
        variant : "ours", "paper" or "improved", as in ``GaussianK``
        """
        return cls.build(params, selector=GaussianK(density, variant=variant), **options)

    @classmethod
    @of_paper("abdelmoniem2021sidco")
    def sidco(
        cls,
        params: object,
        *,
        density: Density,
        distribution: str = "exponential",
        stages: int = 1,
        **options: object,
    ) -> Compressor:
        """SIDCo: a threshold from fits of the tail, in stages.  Paper: abdelmoniem2021sidco.

        Left out: one number of stages for all tensors (every tensor has its own).

        Parameters
        ----------
        density : part of the entries asked for, in (0, 1], or by tensor
        distribution, stages : as in ``Sidco``
        """
        return cls.build(
            params, selector=Sidco(density, distribution=distribution, stages=stages), **options
        )
