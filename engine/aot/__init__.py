"""Functionalizes traced graphs; wrappers reproduce the user's mutations and aliases."""
