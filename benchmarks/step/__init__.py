"""What a step under Horovod works: one launch a method, all models in turn."""
