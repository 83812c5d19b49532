"""From the traced graph, which mutates and aliases, to a functional ATen graph and the wrappers that make up the difference."""
