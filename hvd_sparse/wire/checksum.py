"""CRC-32, chosen in its only place: zlib's, or the same bits at memory speed from ``isal``.

zlib runs at 2 to 3 GB/s and would be most of a codec's cost; isal ten times as fast. Both give the
CRC-32 of ISO 3309, so ranks with and without it understand each other. The package isal is the only
one besides numpy that the core may load, and only if it is installed (``pip install
hvd-sparse[fast]``); tests/architecture names this module as the exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import crc32
else:
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32

__all__ = ["crc32"]
