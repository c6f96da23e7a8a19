"""Laws: Horovod's groups do not change results, and steps are dense at high densities."""

from _common import SPARSE_ONLY, Cases
from _framework import NAME, fw

SHAPES = {"wide": (16, 40), "tall": (60, 5), "one": (30,)}
cases = Cases()


def books_of(name, how=None, **options):
    chosen = {"density": 0.05, "name": name, **SPARSE_ONLY, **options}
    return fw.Books(SHAPES, lambda params: fw.Compression.ldte_bs(params, **chosen), **(how or {}))


@cases
def groups_make_no_difference(name):
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


def high_density_goes_dense(name):
    """At density 0.5, sparse messages would not have fewer bytes, so all steps must be dense."""
    books = books_of(name, density=0.5, allow_dense=True)
    for step in range(3):
        books.take_step(books.gradients(step))
    stats, lost, kept = books.compressor.stats(), books.lost(), books.waiting()
    books.compressor.close()
    return {"lost": lost, "kept": kept, "steps": [stats["dense_steps"], stats["sparse_steps"]]}


if NAME == "tensorflow":  # in PyTorch a program trains so
    cases(high_density_goes_dense)
