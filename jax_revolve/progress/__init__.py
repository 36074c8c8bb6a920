"""Progress: the protocol of reports on a loop, and the meters that show them.

Begin with `meters`, whose `ProgressMeter` is the base class of all meters.

- `listener`: the protocol of progress callbacks, which a loop has as a static value.
- `meters`: the values of `progress=`. A meter also sorts the reports of compiled programs, which
  cannot tell their run. And a bar for work on the host that has a limit of seconds.

`engine.reports` makes the reports on the device. Imports NumPy and the standard library, and no
other room. `step`, `engine` and the rooms above import this one.
"""
