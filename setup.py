"""Pack the front end into one file of the wheel; everything else of the build is in pyproject.toml."""

import pathlib
import runpy

from setuptools import setup
from setuptools.command.build_py import build_py

ASSETS = pathlib.Path(__file__).parent / "notebook_ext" / "widgets" / "bundle_assets.py"


class BuildWithPackedSources(build_py):
    """Copies the packages, and replaces the front end's modules and style sheets by one file without comments."""

    def run(self) -> None:
        """Pack the copies; an editable install has none and reads the files themselves."""
        super().run()
        if self.editable_mode:
            return
        assets = runpy.run_path(str(ASSETS))
        static = pathlib.Path(self.build_lib) / "notebook_ext" / "static"
        (static / assets["PACKED_SOURCES"]).write_text(assets["packed_sources"](), encoding="utf-8")
        for file in (*assets["MODULES"], *assets["STYLE_SHEETS"]):
            (static / file).unlink()


setup(cmdclass={"build_py": BuildWithPackedSources})
