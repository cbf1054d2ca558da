"""Where the parts of the package stand in a checkout, and README.md as a package index shows it.
Everything else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

#: At the root of a checkout, where they are easy to find; inside the package once installed.
FOLDERS = ("cpu_src", "cuda_src", "tuning_configs")

#: A picture of the checkout on a line of its own, perhaps a link; and a link into the checkout.
PICTURE = re.compile(r"(?m)^\[?!\[[^\]]*\]\((?!\w+:)[^)]*\)(?:\]\([^)]*\))?\n")
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)[^)]*\)")


def index_page() -> str:
    """README.md without what leads into a checkout: a package index has neither the pictures nor
    the targets of the links, whose words stay.
    """
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return LINK.sub(r"\1", PICTURE.sub("", text))


setup(
    packages=[*find_packages(include=["pymm", "pymm.*"]), *(f"pymm.{name}" for name in FOLDERS)],
    package_dir={f"pymm.{name}": name for name in FOLDERS},
    long_description=index_page(),
    long_description_content_type="text/markdown",
)
