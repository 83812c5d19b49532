"""Analysis of gradients: which are undefined, and which the graph computes itself."""
