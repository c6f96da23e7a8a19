"""Runs on every host of a cluster: checks that every exchange gives the bits of the numpy engine on
all ranks, also after a failed step.

    scripts/launch -H ... -- python exchanges.py torch|tensorflow
"""

from _framework import fw
from _method_cases import EXCHANGES, IN_A_GROUP
from methods import all_cases


def main():
    fw.begin(0)
    for name, case in all_cases().items():
        if name.removesuffix(IN_A_GROUP) not in EXCHANGES:
            continue
        case(name)  # checks its results
    print(f"rank {fw.hvd.rank()} is done", flush=True)
    fw.is_usable("end")


if __name__ == "__main__":
    main()
