"""Lowering of functional ATen graphs: decompose, lower to loop IR, fuse, build a program."""
