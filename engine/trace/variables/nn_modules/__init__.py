"""Variables of nn.Module and its parts."""
