"""When the parts of a step begin and end: spans, Chrome traces, and merging them."""
