"""Methods that send signs instead of values."""

from __future__ import annotations

from hvd_sparse.density_rule import Density
from hvd_sparse.methods.builder import Builder, Compressor, of_paper
from hvd_sparse.selectors.adacomp import AdaComp
from hvd_sparse.selectors.ef_sign import EfSign
from hvd_sparse.selectors.fixed_threshold import FixedThreshold
from hvd_sparse.selectors.sbc import Sbc
from hvd_sparse.selectors.sign_vote import SignVote
from hvd_sparse.selectors.stc import Stc
from hvd_sparse.selectors.terngrad import TernGrad


class SignMethods(Builder[Compressor]):
    """Methods that send signs instead of values."""

    @classmethod
    @of_paper("chen2018adacomp")
    def adacomp(
        cls, params: object, *, bin_length: int | None = None, **options: object
    ) -> Compressor:
        """AdaComp: signs of the entries that may become the largest of their bin.  Paper:
        chen2018adacomp.

        Left out: the paper's encoding of bins, because we could not access it (``codec="ternary"``
        sends the number of entries of every bin).

        Parameters
        ----------
        bin_length : entries per bin; None for the paper's lengths by kind of layer
        """
        options.setdefault("codec", "ternary")
        return cls.build(params, selector=AdaComp(bin_length), **options)

    @classmethod
    @of_paper("strom2015scalable")
    def strom(
        cls, params: object, *, threshold: float, max_density: float = 0.1, **options: object
    ) -> Compressor:
        """Signs of the entries above a fixed threshold, with error feedback.  Paper:
        strom2015scalable.

        Left out: nothing; an upper bound on the number of entries is added.

        Parameters
        ----------
        threshold : the threshold, in units of the accumulated gradient
        max_density : largest fraction of a tensor's entries that is sent
        """
        options.setdefault("codec", "sign_index")
        selector = FixedThreshold(threshold, max_density=max_density, signs_only=True)
        return cls.build(params, selector=selector, **options)

    @classmethod
    @of_paper("sattler2019stc")
    def stc(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """Sparse ternary compression: signs of the top k, and their mean.  Paper: sattler2019stc.

        Left out: local steps between exchanges (use ``LocalSteps``); a server that compresses its
        updates to the workers.

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        """
        options.setdefault("codec", "sign_mean")
        return cls.build(params, selector=Stc(density), **options)

    @classmethod
    @of_paper("sattler2019sbc")
    def sbc(cls, params: object, *, density: Density, **options: object) -> Compressor:
        """Sparse binary compression: the largest entries of one sign, and their mean.  Paper:
        sattler2019sbc.

        Left out: the paper's delay, which is local steps between exchanges (use ``LocalSteps``).

        Parameters
        ----------
        density : fraction of the entries to send, in (0, 1], or by tensor
        """
        options.setdefault("codec", "one_sign")
        return cls.build(params, selector=Sbc(density), **options)

    @classmethod
    @of_paper("bernstein2019majority")
    def signsgd(cls, params: object, **options: object) -> Compressor:
        """Majority vote of all signs, without memory.  Paper: bernstein2019majority.

        The optimizer receives +1, -1 or, for a tie, 0, so every update has the size of the learning
        rate.

        Left out: Signum's momentum, which each worker applies before the vote.
        """
        options.setdefault("memory", "majority_vote")
        options.setdefault("codec", "one_bit")
        return cls.build(params, selector=SignVote(), **options)

    @classmethod
    @of_paper("karimireddy2019error")
    def ef_sign(cls, params: object, **options: object) -> Compressor:
        """All signs and one magnitude, with error feedback.  Paper: karimireddy2019error.

        Left out: the learning rate inside the residual, which is left to the optimizer.
        """
        options.setdefault("codec", "one_bit")
        return cls.build(params, selector=EfSign(), **options)

    @classmethod
    @of_paper("wen2017terngrad")
    def terngrad(
        cls, params: object, *, clip: float | None = 2.5, seed: int = 0, **options: object
    ) -> Compressor:
        """Stochastic ternary gradients, without memory.  Paper: wen2017terngrad.

        Left out: a common scale for all ranks, the largest of theirs; here every rank has its own.

        Parameters
        ----------
        clip : bound on magnitudes, in standard deviations; None for no clipping
        seed : seed of the random numbers
        """
        options.setdefault("memory", "none")
        options.setdefault("codec", "two_bit")
        return cls.build(params, selector=TernGrad(clip, seed=seed), **options)
