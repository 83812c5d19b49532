"""The layers around a functional graph, one file each; ``WRAPPERS`` in ``engine.aot.driver`` is their order."""
