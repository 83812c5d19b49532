"""Questions about gradients: which are undefined, and which the graph computes itself."""
