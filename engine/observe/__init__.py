"""Stock torch.compile as the second subject: its structured trace becomes the same records as ours."""
