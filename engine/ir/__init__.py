"""Data that one stage passes to the next.

May hold torch objects. Descriptions of them for display are in ``engine.records``.
"""
