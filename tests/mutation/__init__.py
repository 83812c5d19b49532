"""Mutation test: faults are planted in the engine, and the tests must find them."""
