"""Training steps of several methods, side by side, on hosts with a shaped network between them."""
