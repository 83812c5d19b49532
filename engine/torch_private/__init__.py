"""The only imports of torch's private names: all of them may differ in another version.

A module per stage declares its names as ``Entry`` (``entries``) and binds torch's own objects; the engine imports them from
here. For mypy, each declares the names that torch has types of; others are Any, by ``__getattr__``. ``contract`` lists all names
and says what is turned off.
"""
