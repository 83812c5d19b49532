"""AOT calling convention and graphs, as stages hand them on."""
