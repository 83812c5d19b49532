"""The loop IR: ops, tensor definitions, builder, kernels."""
