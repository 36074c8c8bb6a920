"""Progress: the meters that show the reports of loops.

Begin with `meters`, whose `ProgressMeter` is the base class of all meters.

- `meters`: the values of `progress=`; the `Listener` of each, which a loop has as a static value,
  and which sorts reports by run, because a report of a compiled program cannot identify its run;
  and the bar of `fit`.

`step.reports` makes the reports on the device. Imports only NumPy and the standard library.
`step`, `engine` and the rooms above import this one.
"""
