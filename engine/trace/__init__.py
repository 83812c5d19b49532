"""The symbolic interpreter: runs a function's bytecode over values that stand for tensors, constants, objects and functions."""
