#!/usr/bin/env python
"""Write the golden payloads, which all later versions must read and write identically, as long as
the wire version is the same.

    scripts/make_golden.py          write the payloads of PAYLOADS that have no file yet
    scripts/make_golden.py --list   list the existing payloads

Only this script writes to tests/golden/payloads and its MANIFEST.json.  It never overwrites a
payload; if the present code would write other bytes for it, this is an error.  Add new payloads to
PAYLOADS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from golden.contents import write  # noqa: E402

from hvd_sparse.wire.frame import WIRE_VERSION  # noqa: E402

FOLDER = ROOT / "tests" / "golden" / "payloads"
MANIFEST = FOLDER / "MANIFEST.json"

SMALLEST, LARGEST = (2.0**-149).hex(), (2.0**128 - 2.0**104).hex()
FEW = {
    "value_type": "float32",
    "numel": 10,
    "indices": [0, 4, 9],
    "values": ["0x1.8p+0", "-0x1.0p-3", SMALLEST],
}
NONE = {"value_type": "float32", "numel": 1000, "indices": [], "values": []}
ALL = {
    "value_type": "float32",
    "numel": 3,
    "indices": [0, 1, 2],
    "values": ["0x1.0p+0", "-0x1.0p+1", LARGEST],
}
ONE = {"value_type": "float32", "numel": 1, "indices": [0], "values": ["-0x1.921fb60000000p+1"]}
LONGEST = {
    "value_type": "float32",
    "numel": 2**32 - 1,
    "indices": [2**31, 2**32 - 2],
    "values": ["0x1p-1", "0x1p+1"],
}
WIDE = {
    "value_type": "float64",
    "numel": 5,
    "indices": [1, 3],
    "values": ["0x1.5555555555555p-2", "0x0.0000000000001p-1022"],
}

HALVES = {"value_type": "float32", "numel": 70_000, "indices": [0, 4, 65_535, 65_536, 69_999]}
HALVES["values"] = ["0x1.8p+0", "-0x1.0p-3", "0x1.2p+4", "-0x1.fp-9", "0x0.0p+0"]
STEPS = {
    "value_type": "float64",
    "numel": 20,
    "indices": [3, 4, 19],
    "values": ["-0x1.fcp+7", "0x1.0p+1", "0x0.0p+0"],
}
NIBBLES = {
    "value_type": "float32",
    "numel": 20,
    "indices": [3, 4, 19],
    "values": ["-0x1.cp+2", "0x1.0p+1", "0x0.0p+0"],
}
LEVELS = {
    "value_type": "float32",
    "numel": 9_000,
    "indices": [0, 4_095, 4_096, 8_191, 8_999],
    "values": ["0x1.8p+0", "-0x1.8p+0", "-0x1.2p+3", "0x1.8p+0", "0x1.2p+3"],
}
ONE_LEVEL = {**LEVELS, "value_type": "float64", "values": ["-0x1.8p-40", "0x1.8p-40"] * 2}
ONE_LEVEL["indices"] = [0, 1, 5_000, 8_999]
CHUNKS = {
    "value_type": "float32",
    "numel": 8_193,
    "indices": [4_095, 8_191, 8_192],
    "values": ["0x1p-1", "-0x1p+1", "0x0.0p+0"],
}
SIGNS = {
    "value_type": "float32",
    "numel": 21,
    "indices": [0, 7, 8, 20],
    "values": ["0x1.8p-3", "-0x1.8p-3"] * 2,
}
SPARSE = {
    "value_type": "float32",
    "numel": 40_000,
    "indices": [63, 64, 16_384, 39_999],
    "values": ["-0x1.8p-3"] * 4,
}
ALL_SIGNS = {
    "value_type": "float64",
    "numel": 9,
    "indices": list(range(9)),
    "values": ["0x1.4p+2"] * 8 + ["-0x1.4p+2"],
}
RUNS = {
    "value_type": "float32",
    "numel": 500_000,
    "indices": [65_534, 131_070, 196_607, 262_143, 499_999],
}
RUNS["values"] = ["0x1.8p+0", "-0x0.0p+0", "0x1.0p-3", "0x0.0p+0", "-0x1.0p-3"]

FRAMES = {
    "few": FEW,
    "none": NONE,
    "all": ALL,
    "one_of_one": ONE,
    "longest_tensor": LONGEST,
    "float64": WIDE,
}
SENT = {"rank": 0, "step": 3, "configuration": 0xDEADBEEF}
ENTRIES = {**SENT, "frames": {"2": FEW, "7": WIDE}, "error": None}
DENSE = {**SENT, "rank": 1, "frames": {}, "error": None}
FAILED = {
    **SENT,
    "rank": 2,
    "frames": {},
    "error": "NonFiniteGradient: tensor 'größe': 1 of 9 entries",
}
MESSAGES = {"one_rank": [ENTRIES], "three_ranks": [ENTRIES, DENSE, FAILED]}

EXACT = {"few": FEW, "none": NONE, "all": ALL, "float64": WIDE}
SIGNED = {"some": SIGNS, "sparse": SPARSE, "all": ALL_SIGNS, "none": NONE}
OF_CODECS: dict[str, tuple[Any, dict[str, Any]]] = {
    "block16.float32": ({"id": "block16", "values": "float32"}, EXACT),
    "block16.float16": ({"id": "block16", "values": "float16"}, {"few": HALVES}),
    "block16.bfloat16": ("block16", {"few": HALVES}),
    "block16.int8": ({"id": "block16", "values": "int8"}, {"few": STEPS}),
    "block16.int4": ({"id": "block16", "values": "int4"}, {"few": NIBBLES}),
    "golomb.int2": ({"id": "golomb", "values": "int2"}, {"few": LEVELS, "one": ONE_LEVEL}),
    "chunk12": ("chunk12", {"few": LEVELS, "none": NONE}),
    "chunk12.float32": ({"id": "chunk12", "values": "float32"}, {**EXACT, "chunks": CHUNKS}),
    "golomb.float32": ({"id": "golomb", "values": "float32"}, {**EXACT, "longest_tensor": LONGEST}),
    "golomb.bfloat16": ("golomb", {"few": HALVES}),
    "golomb.int8": ({"id": "golomb", "values": "int8"}, {"few": STEPS}),
    "run16": ("run16", {**EXACT, "long_runs": RUNS}),
    "bitmap": ("bitmap", EXACT),
    "bitmap.float16": ({"id": "bitmap", "values": "float16"}, {"few": {**HALVES, "numel": 70_001}}),
    "dense": ("dense", EXACT),
    "dense.int8": ({"id": "dense", "values": "int8"}, {"few": STEPS}),
    "ternary": ("ternary", SIGNED),
    "sign_index": ("sign_index", SIGNED),
    "sign_mean": ("sign_mean", SIGNED),
    "one_sign": ("one_sign", SIGNED),
    "one_bit": (
        "one_bit",
        {**SIGNED, "sparse": {**SPARSE, "numel": 39_999, "indices": [0, 63, 64, 16_384]}},
    ),
    "two_bit": (
        "two_bit",
        {**SIGNED, "sparse": {**SPARSE, "numel": 39_999, "indices": [0, 63, 64, 16_384]}},
    ),
}

PAYLOADS: dict[str, dict[str, Any]] = {
    **{
        f"index_value.{name}": {"kind": "frame", "codec": "index_value", "content": c}
        for name, c in FRAMES.items()
    },
    **{
        f"{name}.{case}": {"kind": "frame", "codec": codec, "content": content}
        for name, (codec, contents) in OF_CODECS.items()
        for case, content in contents.items()
    },
    **{
        f"messages.{name}": {"kind": "messages", "codec": "index_value", "content": c}
        for name, c in MESSAGES.items()
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the existing payloads")
    manifest = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    if parser.parse_args().list:
        print("\n".join(f"{file}  {entry['bytes']} bytes" for file, entry in manifest.items()))
        return 0
    for name, payload in PAYLOADS.items():
        file = f"v{WIRE_VERSION}.{name}.bin"
        data = write(payload)
        entry = {
            "wire_version": WIRE_VERSION,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            **payload,
        }
        if manifest.setdefault(file, entry) != entry:
            print(
                f"{file}: this build writes other bytes or contents than are committed; raise "
                "WIRE_VERSION",
                file=sys.stderr,
            )
            return 1
        if not (FOLDER / file).exists():
            (FOLDER / file).write_bytes(data)
            print(f"{file}: written")
    MANIFEST.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
