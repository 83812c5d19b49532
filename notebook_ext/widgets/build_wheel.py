"""Pack the front end into one file of the wheel.

Setuptools loads this file by its path, so it imports nothing of the package.
"""

import pathlib
import runpy

from setuptools.command.build_py import build_py

ASSETS = pathlib.Path(__file__).parent / "bundle_assets.py"


class BuildWithPackedSources(build_py):
    """Copies the packages, and packs the front end's modules and style sheets into one file."""

    def run(self) -> None:
        """Pack the copies; an editable install has none and reads the files themselves."""
        super().run()
        if self.editable_mode:
            return
        assets = runpy.run_path(str(ASSETS))
        static = pathlib.Path(self.build_lib) / "notebook_ext" / "static"
        (static / assets["PACKED_SOURCES"]).write_bytes(assets["packed_sources"]())
        for file in (*assets["MODULES"], *assets["STYLE_SHEETS"]):
            (static / file).unlink()
