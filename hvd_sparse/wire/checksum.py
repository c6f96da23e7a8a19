"""CRC-32 of frames and messages, from zlib or from the faster package ``isal``, with the same
bits.

zlib runs at 2 to 3 GB/s and would be most of a codec's cost; isal is ten times as fast. Both
compute the CRC-32 of ISO 3309, so ranks with and without isal work together. isal is the only
package besides numpy that the core loads, and only if it is installed (``pip install
hvd-sparse[fast]``).
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
