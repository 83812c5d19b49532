"""Print loop IR as Triton source."""
