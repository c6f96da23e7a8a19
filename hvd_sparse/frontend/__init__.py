"""The part of the compressors that all frontends share."""
