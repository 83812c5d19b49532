"""Makes traced graphs functional, and wraps them so that mutation and aliasing are the user's again."""
