"""anywidget classes: traits and messages, nothing else. What they show is made in ``views``, how in ``static``."""
