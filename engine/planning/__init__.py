"""Plans a distributed training step without devices, as one rank of many."""
