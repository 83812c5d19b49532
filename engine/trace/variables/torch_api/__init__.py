"""Rules for torch's functions and global state."""
