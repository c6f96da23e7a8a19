"""Laws 1 and 2 in both frameworks: nothing is lost, and groups make no difference."""

from __future__ import annotations

from functools import partial
from typing import Any

from _common import SPARSE_ONLY, Cases
from _framework import NAME, fw

SHAPES = {"wide": (16, 40), "tall": (60, 5), "one": (30,)}
cases = Cases()


def books_of(name: str, method: str = "ldte_bs", how: Any = None, **options: Any) -> Any:
    chosen = {"density": 0.05, "name": name, **SPARSE_ONLY, **options}
    return fw.Books(
        SHAPES, lambda params: getattr(fw.Compression, method)(params, **chosen), **(how or {})
    )


def conserve(name: str, **options: Any) -> dict[str, Any]:
    """Twenty steps of chosen gradients; what is lost after each of them, and kept in the end."""
    books, lost = books_of(name, **options), []
    for step in range(20):
        books.take_step(books.gradients(step))
        lost.append(books.lost())
    kept, stats = books.waiting(), books.compressor.stats()
    books.compressor.close()
    counted = {key: stats[key] for key in ("density_achieved", "steps", "dense_steps")}
    return {"lost": lost, "kept": kept, **counted}


cases["conservation_by_ldte_bs"] = conserve
cases["conservation_by_topk"] = partial(conserve, method="topk")
cases["conservation_without_rollback"] = partial(conserve, rollback=False)
if NAME == "tensorflow":
    cases["conservation_eagerly"] = partial(conserve, how={"as_function": False})


@cases
def groups_make_no_difference(name: str) -> list[dict[str, Any]]:
    """With Horovod's groups, and in PyTorch with ours, which are others and change in mid-run."""
    found = []
    ours = ([None], [3], [1], [2, [["wide", "one"]], 3]) if NAME == "torch" else ([None],)
    for theirs in (None, 1, 2, [["one", "wide"]]):
        for plans in ours:
            chosen = {"groups": plans[0]} if plans[0] else {}
            books = books_of(f"{name}.{len(found)}", how={"groups": theirs}, **chosen)
            for step in range(6):
                if len(plans) > 1:
                    books.compressor.regroup(plans[step % len(plans)])
                books.take_step(books.gradients(step))
            nbytes = books.compressor.stats()["payload_bytes"]
            applied = fw.digest_of(books.applied.values())
            found.append({"applied": applied, "kept": books.digest(), "bytes": nbytes})
            books.compressor.close()
    return found


@cases
def high_density_goes_dense(name: str) -> dict[str, Any]:
    """At density 0.5 entries are no fewer bytes than everything, from two ranks on."""
    books = books_of(name, density=0.5, allow_dense=True)
    for step in range(3):
        books.take_step(books.gradients(step))
    stats, lost, kept = books.compressor.stats(), books.lost(), books.waiting()
    books.compressor.close()
    return {"lost": lost, "kept": kept, "steps": [stats["dense_steps"], stats["sparse_steps"]]}
