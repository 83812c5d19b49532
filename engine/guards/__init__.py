"""What must hold for compiled code to be reused: order, generated check, explanation, reasons."""
