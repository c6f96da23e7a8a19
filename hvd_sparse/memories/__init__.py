"""What unsent entries become: one memory a file."""

from hvd_sparse.discovery import import_siblings

import_siblings(__name__, __path__)
