"""Opcode handlers, one module per family. Importing a module registers its handlers."""
