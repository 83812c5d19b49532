"""The static site: lessons with explorers, and documentation with offline search."""
