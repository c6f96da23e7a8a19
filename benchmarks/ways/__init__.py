"""Ways of the literature to keep accuracy when entries are rare, trained side by side.

Each way is restated in plain torch, so that one that loses need not become a part.
"""
