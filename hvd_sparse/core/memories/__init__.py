"""What unsent entries become: one memory a file."""

from ..discovery import import_siblings

import_siblings(__name__, __path__)
