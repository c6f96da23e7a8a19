"""The code that the compressors of all frontends share."""
