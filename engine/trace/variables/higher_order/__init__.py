"""Higher-order operators and torch.func transforms."""
