"""The files of a workspace on a host other than the notebook's: their types, and how they are put in place.

entry      what a file is: path, kind, size, content; which paths are allowed; a manifest's bytes (pure)
below      folders are opened component by component below a descriptor, and no link is followed
record     what was placed in a folder, to tell what a rank has changed there; survives a crash
packs      small contents that have come together, one file each time
staging    contents that have arrived, by their sha256, until they're put in place
arrived    contents that have arrived become files
open_folders   folders one after the other, the last one open
placer     compares a folder with a manifest, and makes it equal
answers    what a host answers, as data

This package knows nothing of meshes and needs the standard library only.
"""
