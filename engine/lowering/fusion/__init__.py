"""Assignment of operations to kernels, and the cost of fusing them."""
