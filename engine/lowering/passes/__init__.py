"""Graph passes before lowering."""
