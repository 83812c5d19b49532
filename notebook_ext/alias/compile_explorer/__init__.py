"""IPython extension by the name of the distribution.

``%load_ext compile_explorer`` does what ``%load_ext notebook_ext`` does.
"""

from notebook_ext import load_ipython_extension, unload_ipython_extension

__all__ = ["load_ipython_extension", "unload_ipython_extension"]
