#!/usr/bin/env python3
"""Installs one version of PyMongo, and the tests of that version, into a work folder.

The tests come with PyMongo's source package. PyMongo itself is installed as a wheel, with its C extensions.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

# Version and SHA-256 of the source package.
VERSIONS = {
    "4.15.5": "3a8d6bf2610abe0c97c567cf98bf5bba3e90ccc93cc03c9dde75fa11e4267b42",
    "4.20.0": "f773b0aec28687587cdeda490463a82debc4566a4a3620dcc8dada9d2c0a1acd",
}

# All packages, with their dependencies, so that pip need not find any dependency itself.
PACKAGES = [
    "dnspython==2.7.0",
    "importlib_metadata==8.7.0",
    "iniconfig==2.1.0",
    "packaging==25.0",
    "pluggy==1.6.0",
    "pygments==2.19.2",
    "pytest==8.4.2",
    "pytest-asyncio==1.2.0",
    "pytest-timeout==2.4.0",
    "typing_extensions==4.15.0",
    "zipp==3.23.0",
]

# pip needs these packages to read the metadata of the source package before it saves the file.
BUILD_PACKAGES = [
    "hatch-requirements-txt==0.4.1",
    "hatchling==1.27.0",
    "pathspec==0.12.1",
    "setuptools==80.9.0",
    "trove-classifiers==2025.9.11.17",
]

PIP_SECONDS = 600


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", choices=sorted(VERSIONS))
    parser.add_argument("work", type=Path, help="work folder; created if it is missing")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):
        sys.exit("Python 3.11 or newer is needed")
    done = arguments.work / "installed"
    if done.exists() and done.read_text() == arguments.version:
        print(f"PyMongo {arguments.version} is installed already")
        return
    install(arguments.version, arguments.work)
    done.write_text(arguments.version)
    print(f"PyMongo {arguments.version} is installed in {arguments.work}")


def install(version, work):
    done = work / "installed"
    done.unlink(missing_ok=True)
    venv.create(work / "venv", with_pip=True, clear=True)
    pip(work, "install", "--no-deps", "--only-binary", ":all:", *PACKAGES, *BUILD_PACKAGES, f"pymongo=={version}")
    unpack(fetch(version, work), work / "suite")


def fetch(version, work):
    """Returns the source package, checked against its known hash."""
    target = work / "download"
    shutil.rmtree(target, ignore_errors=True)
    pip(
        work, "download", "--no-deps", "--no-build-isolation", "--no-binary", "pymongo",
        "--dest", str(target), f"pymongo=={version}",
    )
    (package,) = target.glob("pymongo-*.tar.gz")
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != VERSIONS[version]:
        sys.exit(f"{package.name} has the SHA-256 {found}, expected {VERSIONS[version]}")
    return package


def unpack(package, suite):
    """Unpacks the package without PyMongo's own modules, so that the tests import the installed ones."""
    shutil.rmtree(suite, ignore_errors=True)
    with tarfile.open(package) as archive:
        for member in archive.getmembers():
            top, _, rest = member.name.partition("/")
            if rest and rest.split("/")[0] not in ("bson", "gridfs", "pymongo"):
                member.name = rest
                archive.extract(member, suite, filter="data")


def pip(work, *arguments):
    command = [str(work / "venv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, timeout=PIP_SECONDS)


if __name__ == "__main__":
    main()
