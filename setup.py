"""Where the parts of the package stand in a checkout. Everything else is in pyproject.toml."""

from setuptools import find_packages, setup

#: At the root of a checkout, where they are easy to find; inside the package once installed.
FOLDERS = ("cpu_src", "cuda_src", "tuning_configs")

setup(
    packages=[*find_packages(include=["pymm", "pymm.*"]), *(f"pymm.{name}" for name in FOLDERS)],
    package_dir={f"pymm.{name}": name for name in FOLDERS},
)
