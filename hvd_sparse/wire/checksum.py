"""CRC-32 (ISO 3309) of frames and messages, from ``isal`` if it is installed, else from zlib.

zlib, at 2 to 3 GB/s, would be most of a codec's cost; isal is ten times as fast.
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
