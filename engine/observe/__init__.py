"""Observation of stock torch.compile: its structured trace becomes the engine's records."""
