"""The directory of a run that can be resumed. The files are those of `storage.states`.

- `session`: a run and its directory: where it goes on, and what each state holds.
- `folder`: the states of this process, of which all processes use the same one.
- `saved_rows`: rows, of which each state writes those that are new.
- `fingerprint`: what has to be the same for a run to go on.
"""
