"""Bytecode tracer: run a function's bytecode symbolically and record an fx graph.

Variables represent tensors, constants, objects and functions (as in torch._dynamo).
"""
