"""What the compressors of all frontends share."""
