"""Wire formats, byte by byte: carriers, messages, frames and their checksums."""
