"""Variables of tensors, arrays and symbolic numbers."""
