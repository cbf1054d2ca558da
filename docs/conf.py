"""Sphinx settings of the documentation: `make docs` builds it into docs/_build."""

import sys
from pathlib import Path
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from pymm import __version__  # noqa: E402

project = "pymm"
copyright = "pymm contributors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "pymm_docs"]
exclude_patterns = ["_build", "_ext"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings name arguments and functions in single backticks.
default_role = "literal"
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["scipy", "torch"]  # what needs them is described without them
sys.modules["mpi4py"] = MagicMock()  # nor does it need an MPI library: a job of one process
sys.modules["mpi4py"].MPI.COMM_WORLD.size = 1

html_theme = "furo"
html_title = f"pymm {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["pymm.css"]
