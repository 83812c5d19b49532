"""From functional ATen graphs to loops: decompose, lower, fuse, and lay the program out."""
