"""Views of time and memory: timeline, live memory, roofline."""
