"""Replay side effects and guard against aliasing."""
