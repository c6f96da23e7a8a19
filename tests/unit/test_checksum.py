"""Checksums are CRC-32, whichever library computes them."""

from __future__ import annotations

import subprocess
import sys
import zlib

import numpy as np
import pytest

from hvd_sparse.wire.checksum import crc32


def test_it_is_the_crc_32_of_the_standard():
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("size", [0, 1, 3, 24, 1000, 65_537])
def test_every_length_and_continuation_is_zlibs(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32(data.data) == zlib.crc32(data.data)
    assert crc32(data[size // 3 :].data, crc32(data[: size // 3].data)) == zlib.crc32(data.data)


@pytest.mark.parametrize(("isal_is_there", "module"), [(True, "isal.isal_zlib"), (False, "zlib")])
def test_isal_is_used_if_it_is_there_and_zlib_otherwise(isal_is_there, module):
    if isal_is_there:
        pytest.importorskip("isal", reason="it is the library that is looked for")
    hide = "" if isal_is_there else "sys.modules['isal'] = None; "
    script = (
        f"import sys; {hide}from hvd_sparse.wire.checksum import crc32; "
        "print(crc32.__module__, crc32(b'hvd'))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [module, str(zlib.crc32(b"hvd"))]
