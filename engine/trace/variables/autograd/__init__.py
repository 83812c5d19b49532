"""autograd.Function and torch.autograd in traced code."""
