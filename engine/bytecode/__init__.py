"""Bytecode as data: facts per Python version, decoding, source spans, liveness, resume functions and routed copies. Needs no torch."""
