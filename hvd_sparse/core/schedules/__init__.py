"""At which density, at this step: one schedule a file."""

from ..discovery import import_siblings

import_siblings(__name__, __path__)
