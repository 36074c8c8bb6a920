"""The directory of a run that can be resumed. The files are those of `storage.states`.

- `session`: a run and its directory: where it goes on, and what each state holds.
- `journal`: places, carries and rows, written and read.
- `fingerprint`: what has to be the same for a run to go on.
"""
