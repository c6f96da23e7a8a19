"""Methods that compute the threshold from a distribution fitted to the tensor."""

from __future__ import annotations

from hvd_sparse.density_rule import Density
from hvd_sparse.methods.builder import Builder, Compressor, is_as_published, of_paper
from hvd_sparse.selectors.gaussian_k import GaussianK
from hvd_sparse.selectors.ldte import Ldte
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.selectors.sidco import Sidco


class FittedMethods(Builder[Compressor]):
    """Methods that compute the threshold from a distribution fitted to the tensor."""

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

        The search normally starts from the tensor's last threshold, and uses the fit only on the
        first step and when it misses. The paper fits at every step, and bisects.

        Left out: the paper's own bracket, tolerance and limit on bisections, because we could not
        access them.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        variant : "ours", or "paper", which sets ``search="bisection", warm_start=False``
        search, warm_start : see ``selectors.ldte_bs.LdteBs``; None for the variant's default
        tolerance, max_passes : see ``selectors.ldte_bs.LdteBs``
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
        """LDTE: the Laplace threshold estimate without a search.  Paper: chen2021ldte.

        Left out: the area relation by which the paper finds key points of the curve, because we
        could not access it. The threshold is computed from the fitted tail in closed form.

        Parameters
        ----------
        density : intended fraction of the entries, in (0, 1], or by tensor; the number sent depends
            on the estimate
        cap : at most cap * k entries are sent
        """
        return cls.build(params, selector=Ldte(density, cap=cap), **options)

    @classmethod
    @of_paper("shi2019understanding")
    def gaussian_k(
        cls, params: object, *, density: Density, variant: str = "ours", **options: object
    ) -> Compressor:
        """Threshold from a fitted normal distribution.  Paper: shi2019understanding.

        With error feedback. The density is divided between both tails, as in the authors' code;
        their Algorithm 1 uses the one-sided quantile, as ``variant="paper"`` does.

        Left out: the code's density that falls from epoch to epoch (use ``schedule=``).

        Parameters
        ----------
        density : intended fraction of the entries, in (0, 1], or by tensor
        variant : "ours", "paper" or "improved"; see ``GaussianK``
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
        """SIDCo: a threshold from fits to the tail, in stages.  Paper: abdelmoniem2021sidco.

        Left out: a common number of stages for all tensors; here every tensor has its own.

        Parameters
        ----------
        density : intended fraction of the entries, in (0, 1], or by tensor
        distribution, stages : see ``Sidco``
        """
        return cls.build(
            params, selector=Sidco(density, distribution=distribution, stages=stages), **options
        )
