"""Fields of a record's total, and of each of its tensors."""

FIELDS: dict[str, str] = {
    "sparse_steps": "steps since the last record that sent a selection",
    "dense_steps": "steps since the last record that sent everything",
    "density_asked": "at this step; None where the method decides, on a dense step, and of all "
    "tensors where theirs differ",
    "density_achieved": "over the sparse steps since the last record",
    "bytes_sent": "a step, on average since the last record; of a tensor its frames alone, without"
    " headers and carriers",
    "bytes_received": "the same; of a tensor at this step",
    "threshold": "where this step's selection ended",
    "residual_norm": "L2, of what this rank has not sent yet",
    "contraction": "|not sent|**2 / |accumulated|**2 of this step",
    "staleness": "for how many steps the entries of this step had waited, on average",
    "passes": "counting passes since the last record",
    "one_pass": "tensor-steps since then that needed none of their own",
    "fallbacks": "searches since then that exact top-k ended",
    "select_s": "seconds of this step",
    "encode_s": "seconds of this step",
    "exchange_s": "seconds of this step; of a tensor those of its message, in total those in which"
    " any was under way",
    "decode_s": "seconds of this step",
}
"""What each means; None where it is not known."""
