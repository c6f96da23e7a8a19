"""The framework named by a worker's first argument, for cases that both frameworks share."""

import importlib
import os
import sys

if sys.argv[1] == "keras3":
    os.environ["TF_USE_LEGACY_KERAS"] = "0"  # before TensorFlow is imported
NAME = "torch" if sys.argv[1] == "torch" else "tensorflow"
fw = importlib.import_module(f"_{NAME}_cases")
