"""Which entries go now: one method a file."""

from ..discovery import import_siblings

import_siblings(__name__, __path__)
