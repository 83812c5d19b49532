"""The layers around a functional graph, one file each; ``driver.WRAPPERS`` has their order."""
