"""Split the joint graph into forward and backward."""
