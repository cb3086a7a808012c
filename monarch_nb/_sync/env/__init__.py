"""The notebook's environment, copied to every host byte for byte.

Lower modules first:

- bytecode, elf, templates: files whose bytes depend on where they lie or when they were written, made
  independent of both (pure)
- manifest: what an environment consists of, as canonical text with a name of its own (pure)
- interpreter, records, editable: what is asked of an interpreter, of installed packages, of editable installs
- layers: the trees that an interpreter is made of; every entry of `sys.path` is in one, or named
- cache, scan: a manifest of layers, without reading what a record of an installer knows
- packages: packages that differ between hosts (pure)
- store, place, clean: content, prefixes made of it, and what is removed again, on a host
- suitable: can a store be in this directory?
- arrival: receives an environment where no Python is, run by the one that was sent ahead
- donors: content that a host has outside its store
- fits: can this environment run on that machine?
- packs, agent, sending: content from here to agents on hosts
"""
