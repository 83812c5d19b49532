"""Variables of functions, methods, generators and other callables."""
