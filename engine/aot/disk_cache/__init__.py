"""AOT artifacts in the disk cache."""
