"""All work on arrays: the contract, the numpy reference, and the engines that restate it for
speed."""
