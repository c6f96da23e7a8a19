"""The papers behind the parts: citation key -> BibTeX."""

from __future__ import annotations

from .errors import UnknownName

PAPERS = {
    "chen2021ldte": """@article{chen2021ldte,
  author  = {Chen, Shi-da and Liu, Qiang and Han, Liang},
  title   = {Gradient sparsification compression approach to reducing communication in distributed training},
  journal = {Journal of ZheJiang University (Engineering Science)},
  volume  = {55}, number = {2}, pages = {386--394}, year = {2021},
  doi     = {10.3785/j.issn.1008-973X.2021.02.019}
}""",
    "aji2017sparse": """@inproceedings{aji2017sparse,
  author    = {Aji, Alham Fikri and Heafield, Kenneth},
  title     = {Sparse communication for distributed gradient descent},
  booktitle = {Proceedings of the 2017 Conference on Empirical Methods in Natural Language Processing},
  pages     = {440--445}, year = {2017}
}""",
    "stich2018sparsified": """@inproceedings{stich2018sparsified,
  author    = {Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi, Martin},
  title     = {Sparsified {SGD} with memory},
  booktitle = {Advances in Neural Information Processing Systems 31},
  pages     = {4452--4463}, year = {2018}
}""",
}


def bibtex(key: str) -> str:
    """The BibTeX entry of a citation key."""
    try:
        return PAPERS[key]
    except KeyError:
        raise UnknownName(f"no paper has the key {key!r}; there are: {', '.join(sorted(PAPERS))}") from None
