"""The only imports of torch's private names: all of them may differ in another version.

A module per stage declares its names as ``Entry`` (``entries``) and binds torch's own objects; the engine imports them from
here. ``contract`` lists all of them and says what is turned off.
"""
