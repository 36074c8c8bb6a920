"""Progress: the protocol of reports on a loop, and the meters that show them.

Begin with `meters`, whose `ProgressMeter` is the base class of all meters.

- `listener`: the protocol of progress callbacks, which a loop has as a static value.
- `meters`: the values of `progress=`, which also sort reports by run, because a report of a
  compiled program cannot identify its run; and the bar of `fit`.

`step.reports` makes the reports on the device. Imports only NumPy and the standard library.
`step`, `engine` and the rooms above import this one.
"""
