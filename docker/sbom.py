"""Keeps the linked crates in the file of cargo-cyclonedx, and checks the result (see `sbom`).

The arguments are the folder with `source` and `linked`, and the file to write.
"""

import collections
import json
import pathlib
import sys
import tomllib

# Crates that the program always contains, so the file must list them.
EXPECTED = ("rustls", "tokio", "bson", "ring")


def linked_crates(path):
    """The crates in the output of `cargo tree`, as (name, version)."""
    words = (line.split() for line in path.read_text().splitlines() if line)
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def key(component):
    return component["name"], component["version"]


def keep_linked(bom, linked):
    """Removes the components that are not linked, and the references to them."""
    bom["components"] = [part for part in bom["components"] if key(part) in linked]
    kept = {part["bom-ref"] for part in bom["components"]}
    kept.add(bom["metadata"]["component"]["bom-ref"])
    bom["dependencies"] = [entry for entry in bom["dependencies"] if entry["ref"] in kept]
    for entry in bom["dependencies"]:
        needed = [reference for reference in entry.get("dependsOn", []) if reference in kept]
        entry.pop("dependsOn", None)
        if needed:
            entry["dependsOn"] = needed


def check(bom, linked, lock):
    """Ends the program unless the file and Cargo.lock name the same crates."""
    program = bom["metadata"]["component"]
    found = collections.Counter(map(key, [program, *bom["components"]]))
    doubled = [crate for crate, count in found.items() if count > 1]
    if doubled:
        sys.exit(f"listed twice: {doubled}")
    if set(found) != linked:
        sys.exit(f"linked, but not in the file: {sorted(linked - set(found))}")
    locked = {(package["name"], package["version"]): package for package in lock["package"]}
    unknown = sorted(set(found) - set(locked))
    if unknown:
        sys.exit(f"not in Cargo.lock: {unknown}")
    if program["name"] != "seawall":
        sys.exit(f"the program is {program['name']}")
    missing = set(EXPECTED) - {name for name, _ in found}
    if missing:
        sys.exit(f"not in the file: {sorted(missing)}")
    for part in bom["components"]:
        checksum = locked[key(part)].get("checksum")
        hashes = [entry["content"] for entry in part.get("hashes", [])]
        if hashes != ([checksum] if checksum else []):
            sys.exit(f"{part['name']}: another hash than in Cargo.lock")
        if not part.get("licenses"):
            sys.exit(f"{part['name']}: no licence")


def main(folder, output):
    folder = pathlib.Path(folder)
    source = folder / "source"
    text = (source / "proxy" / "seawall_bin.cdx.json").read_text()
    # References contain the path of the copied sources, which differs in each run.
    bom = json.loads(text.replace(f"file://{source}", "file:///source"))
    linked = linked_crates(folder / "linked")
    keep_linked(bom, linked)
    check(bom, linked, tomllib.loads((source / "Cargo.lock").read_text()))
    written = json.dumps(bom, indent=2, ensure_ascii=False) + "\n"
    if str(folder) in written:
        sys.exit(f"the file names {folder}")
    pathlib.Path(output).write_text(written)
    versions = dict(map(key, bom["components"]))
    named = ", ".join(f"{name} {versions[name]}" for name in EXPECTED)
    print(f"seawall {bom['metadata']['component']['version']}, with {named}")
    print(f"components: {len(bom['components'])}")


main(*sys.argv[1:])
