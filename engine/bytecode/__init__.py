"""CPython bytecode: decoding, source spans, liveness, resume functions, call interception.

This package does not need torch.
"""
