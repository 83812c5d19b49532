"""``python -m notebook_ext [NOTEBOOK]``: run a notebook (the tour) without a browser and print the path of its page."""

from __future__ import annotations

import sys

from notebook_ext.report import main

sys.exit(main())
