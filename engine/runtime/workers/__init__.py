"""Worker processes and background compile jobs."""
