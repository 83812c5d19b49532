"""Runtime: dispatch and code cache, program executor, worker processes, verification."""
