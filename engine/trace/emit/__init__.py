"""Steps of ``emit_node`` on arguments and on the state of fakes; nodes for their effect."""
