"""FX graphs: verifier, node text, passes, and composite ops that every target supports."""
