"""Records: frozen, JSON-serializable facts about each stage; nothing here imports torch.

So a saved session can be loaded without torch.
"""
