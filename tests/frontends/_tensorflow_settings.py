"""Settings in which density 1.0 must equal dense Horovod. One choice is ranks and controller."""

from typing import NamedTuple

from _pairwise import covering_settings


class Place(NamedTuple):
    ranks: int
    controller: str
    members: str

    def __str__(self):
        return self.members


LAUNCHES = ((1, "gloo"), (2, "gloo"), (3, "mpi"), (4, "mpi"))
PLACES = (
    *(Place(ranks, controller, "all") for ranks, controller in LAUNCHES if ranks > 1),
    Place(3, "mpi", "one_left_out"),
    Place(4, "mpi", "one_left_out"),
)
"""Places. One rank is not among them, because Horovod never calls a compressor there."""

COMMON = {
    "place": PLACES,
    "reduction": ("average", "sum", "predivide"),
    "grouping": ("single", "number", "lists"),
    "method": ("ldte_bs", "topk"),
}
TAPE_FACTORS = COMMON | {
    "mode": ("eager", "function"),
    "dtype": ("float32", "float64", "float16", "bfloat16"),
    "network": ("some_without_gradient", "local_layer", "scalar_and_empty", "embedding"),
}
KERAS_FACTORS = COMMON | {
    "optimizer": ("new", "legacy"),
    "passes": (1, 2),
    "execution": ("graph", "eager", "four_steps"),
    "given": ("unbuilt_model", "callable", "list"),
}

TAPE_SETTINGS = covering_settings(TAPE_FACTORS)
KERAS_SETTINGS = covering_settings(KERAS_FACTORS)


def settings_of(settings, ranks, controller):
    there = [setting for setting in settings if setting.place[:2] == (max(2, ranks), controller)]
    return {str(setting): setting for setting in there}
