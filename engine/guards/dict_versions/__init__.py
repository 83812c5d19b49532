"""Fast guards on dict versions below a module."""
