"""Settings of the documentation site; `make docs` builds it, without a network.

The tree itself is the source, so that a link means the same here and on a code host: pages are
README.md, the texts beside it and docs/. A link to another file of the tree is a download.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

# Cells and autodoc read these once, when JAX and Keras are imported. A page is built on the CPU
# unless another platform was asked for; its text says on which device its figures were made.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("PACELINE_DATA", str(ROOT.parent / "shared" / "data"))
os.environ.setdefault("PACELINE_CACHE_DIR", str(ROOT / "site" / "cache" / "paceline"))

project = "Paceline"
author = "The Paceline developers"
project_copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "paceline_site",
]

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [
    ".*",
    "**/__pycache__",
    "benchmarks",
    "dist",
    "docs/_*",
    "examples",
    "requirements",
    "runs",
    "site",
    "src",
    "tests",
    "tools",
]

# Where a name, a link or an anchor leads nowhere, the build fails (-W). No other project's index is
# read, since that needs a network: names of other packages are text.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!paceline\b).*\..*"),  # another package's
    (r"py:.*", r"[A-Za-z_]+"),  # a builtin, or a name in words
    (r"py:.*", r"paceline\.[a-z_]+\..*"),  # inside of the package: no page
]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header"]  # a page of the tree may begin with a comment

nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "site" / "cache" / "notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
highlight_language = "none"  # a block without a language is no Python: commands, what they print
python_maximum_signature_line_length = 90  # a longer one has a line for each argument
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "sphinx_book_theme"
html_title = "Paceline"
html_static_path = ["_static"]
html_css_files = ["paceline.css"]
html_show_sourcelink = False
html_copy_source = False
# As the reader's system has it. Without this the theme logs an error on each page.
html_context = {"default_mode": "auto"}
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search is in the sidebar, and in the bar above the text
    "show_navbar_depth": 1,
    "show_toc_level": 2,
}
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp"
