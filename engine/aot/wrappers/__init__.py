"""The layers around a functional graph, one file each; ``driver.WRAPPERS`` and ``driver.LAYERS`` have their order."""
