"""anywidget classes: traits and messages only.

``views`` builds the data that they show; ``static`` holds the JavaScript that displays it.
"""
