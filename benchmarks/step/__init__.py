"""The work of a step under Horovod: one launch a method, all models in turn."""
