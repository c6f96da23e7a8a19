"""Short trainings by DistributedDataParallel: our hook beside PyTorch's own, on accuracy."""
