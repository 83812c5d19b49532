"""Data that one stage passes to the next.

May hold torch objects. Descriptions of them for display are in ``engine.records``.
"""

from engine.supported_versions import check_torch

check_torch()
