"""The world changes between two calls of `host_scan` with one directory: the second is refused, or
returns what a run from the beginning returns. Never another run's result. Nor is it refused where
the program is the same."""

import hashlib
import importlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.sparse import BCOO
from jax.scipy.interpolate import RegularGridInterpolator
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.oracles import with_reverse_rule
from support.runs import Ended, bits, contents, ends_at, environment
from support.runs import run as small_run

from jax_revolve import Disk, HostMemory, checkpointed_scan, host_scan, plan
from jax_revolve.host import directory as run_directory
from jax_revolve.host.identity import digest_of_array
from jax_revolve.schedule.actions import SCHEDULE
from jax_revolve.schedule.options import Options

Patch = pytest.MonkeyPatch
Function = Callable[[Any], Any]

FACTOR = 1.0
TABLE = np.ones(1)
HERE = Path(__file__).parent
FOLDER: list[Path] = []
"""Where the modules and files of the world are, one folder after another."""


# What a step may use, with a number in it


def times(by: float) -> Function:
    return lambda u: u * by


def times_table(by: float) -> Function:
    return lambda u: u * np.full(u.shape, by, u.dtype)


def with_argument(by: float) -> Any:
    known = partial(jax.custom_vjp, nondiff_argnums=(1,))(lambda u, by: u)
    known.defvjp(lambda u, by: (u, None), lambda by, _, ct: (by * ct,))
    return lambda u: known(u, by)


def with_forward_rule(by: float) -> Any:
    same = jax.custom_jvp(lambda u: u)
    same.defjvp(lambda u, du: (u[0], by * du[0]))
    return same


def with_rule(by: Any) -> Any:
    return with_reverse_rule(lambda u: u, lambda _, ct: by * ct)


def rule_in_loop(by: float) -> Any:
    inner = with_rule(by)
    step = lambda u, _: (inner(u), None)  # noqa: E731
    return lambda u: checkpointed_scan(step, u, length=2, checkpoints=1)[0]


def of_global(by: float) -> Function:
    globals()["FACTOR"] = by
    return lambda u: u * FACTOR


def changed_in_place(by: float) -> Function:
    TABLE[0] = by
    return TIMES_TABLE


TIMES_TABLE = jax.jit(lambda u: u * TABLE[0])


def module_of(name: str, **files: str) -> Any:
    """A module of the user's, written to a folder of its own and imported anew."""
    FOLDER.append(FOLDER[0] / str(len(FOLDER)))
    for file, text in files.items():
        path = FOLDER[-1] / name / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for known in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[known]
    sys.path.insert(0, str(FOLDER[-1]))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER[-1]))


def of_module(by: float) -> Function:
    return module_of("a_model", __init__=f"FACTOR = {by}\ndef run(u): return u * FACTOR\n").run


def of_submodule(by: float) -> Function:
    """Which is imported when the function is traced."""
    text = "def run(u):\n    from a_package.part import FACTOR\n    return u * FACTOR\n"
    return module_of("a_package", __init__=text, part=f"FACTOR = {by}\n").run


def written(text: str) -> Any:
    """The function `run` of a program."""
    made: dict[str, Any] = {}
    exec(text, made)
    return made["run"]


def in_except_clause(by: float) -> Function:
    caught = "(KeyError, ValueError)" if by > 1 else "KeyError"
    return written(f"""
def run(u):
    try:
        try:
            raise ValueError
        except {caught}:
            return u * 2
    except ValueError:
        return u * 3
""")


def recursive(by: float) -> Function:
    return written(f"""
def even(u, n): return u if n == 0 else odd(u * {by}, n - 1)
def odd(u, n): return even(u + 1, n - 1)
def run(u): return even(u, 4)
""")


class Wrapper:
    """An object that calls another one."""

    def __init__(self, wrapped: Function) -> None:
        self.__wrapped__ = wrapped

    def __call__(self, u: Any) -> Any:
        return self.__wrapped__(u)


def of_class(by: float) -> Function:
    heir: Any = type("Heir", (type("Model", (), {"by": by}),), {"run": lambda self, u: u * self.by})
    return heir().run


def of_metaclass(by: float) -> Function:
    return lambda u: u * type("Meta", (type,), {"by": by})("Model", (), {}).by  # pyright: ignore


def of_interpolator(by: float) -> Function:
    at = jnp.linspace(-90.0, 90.0, 5)
    interpolated = RegularGridInterpolator((at,), by * at, bounds_error=False, fill_value=0.0)
    return lambda u: interpolated(u[:, None]).astype(u.dtype)


def of_matrix(by: float) -> Function:
    dense = {n: jnp.eye(n) + by * jnp.eye(n, k=1) for n in (4, 8)}
    known = {n: BCOO.fromdense(matrix, nse=2 * n - 1) for n, matrix in dense.items()}
    return lambda u: (known[u.size] @ u).astype(u.dtype)


def of_kernel(by: float) -> Function:
    def kernel(x: Any, y: Any) -> None:
        y[...] = 2 * x[...]

    def run(u: Any) -> Any:
        same, turned = pl.BlockSpec((2,), lambda i: (i,)), pl.BlockSpec((2,), lambda i: (1 - i,))
        index = {"in_specs": [turned if by > 1 else same], "out_specs": same}
        half, rest = u[:4], u[4:]
        half = pl.pallas_call(kernel, half, grid=(2,), interpret=True, **index)(half)
        return jnp.concatenate([half, rest])

    return with_reverse_rule(run, lambda _, ct: 2 * ct)


def with_policy(names: tuple[str, ...]) -> Function:
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    named = lambda u: jnp.sin(checkpoint_name(jnp.cos(checkpoint_name(jnp.sin(u), "a")), "b"))  # noqa: E731
    return jax.checkpoint(named, policy=policy)


def of_file(by: float) -> Function:
    path = FOLDER[0] / "factor.npy"
    np.save(path, by)
    return lambda u: u * np.load(path).astype(u.dtype)


def of_environment(by: float) -> Function:
    os.environ["A_FACTOR"] = str(by)
    return lambda u: u * float(os.environ["A_FACTOR"])


NUMBERS: dict[str, Callable[[Any], Function]] = {
    "closure": times,
    "partial": lambda by: partial(jnp.multiply, by),
    "global": of_global,
    "in place": changed_in_place,
    "in jit": lambda by: jax.jit(times_table(by)),
    "in scan": lambda by: (
        lambda u: lax.scan(lambda u, _: (jax.jit(times_table(by))(u), None), u, length=2)[0]
    ),
    "in branch": lambda by: lambda u: lax.cond(u[0] < 9, times_table(by), lambda u: u, u),
    "rule": with_rule,
    "rule with a table": lambda by: with_rule(np.full(1, by, np.float32)),
    "rule with an argument": with_argument,
    "forward rule": with_forward_rule,
    "rule in a loop": rule_in_loop,
    "module": of_module,
    "submodule": of_submodule,
    "except clause": in_except_clause,
    "recursion": recursive,
    "wrapper": lambda by: Wrapper(Wrapper(times(by))),
    "class": of_class,
    "metaclass": of_metaclass,
    "installed": lambda by: eqx.Partial(jnp.multiply, by),
    "interpolator": of_interpolator,
    "matrix": of_matrix,
    "kernel": of_kernel,
    "file": of_file,
    "environment": of_environment,
}
"""Functions with a number in a place of which Python tells little."""


def printing(text: str) -> Function:
    def run(u: Any) -> Any:
        jax.debug.callback(lambda: print(text, end=""))
        return u

    return run


def checked(message: str) -> Function:
    return lambda u: eqx.error_if(u, u[0] > 1e9, message)


SAME: dict[str, tuple[Callable[[Any], Function], tuple[Any, ...]]] = {
    "names in any order": (with_policy, (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a"))),
    "lines": (lambda n: written("\n" * n + "def run(u):\n    return u + 1\n"), (0, 1, 7)),
    "text": (lambda t: written(f"def run(u):\n    '{t}'\n    return u + 1\n"), ("a", "bc")),
    "name": (lambda n: written(f"def {n}(u):\n    return u + 1\nrun = {n}\n"), ("one", "two")),
    "module moved": (lambda _: of_module(2.0), (0, 1, 2)),
    "class made anew": (lambda _: of_class(2.0), (0, 1, 2)),
    "unused": (lambda by: written(f"UNUSED = {by}\ndef run(u):\n    return u + 1\n"), (1, 2)),
    "set": (lambda names: lambda u: u * len({*names}), (("x", "y"), ("y", "x"))),
    "printed": (printing, ("a", "b")),
    "message": (checked, ("too large", "much too large")),
}
"""Functions that are the same program with each of these values."""


# What else a run is made of

FIELDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(NUMBERS, (1.0, 1.25)),
    "policy": (("a",), ("a", "b"), ()),
    **{name: values for name, (_, values) in SAME.items()},
    "x_last": (1.0, 1.5),
    "xs": ("function", "array", "jax"),
    "operation": ("tanh", "sin"),
    "weight": (1.0, 1.25),
    "start": (0.5, 0.75),
    "width": (4, 8),
    "dtype": ("float64", "float32"),
    "length": (6, 7),
    "reverse": (False, True),
    "options": (
        *({"checkpoints": 2}, {"checkpoints": 1}, {"checkpoints": 3}, {}, {"memory": 300}),
        {"checkpoints": 2, "storage": HostMemory(checkpoints=2, transfer=0.5)},
        *({"plan": 1}, {"plan": 2}),
    ),
    "derivative": ("none", "weight", "start", "both"),
    "cotangent": (1.0, -1.0),
    "consumed": (False, True),
    "devices": ("one", "mesh", "reversed"),
    "version": (0, 1, 2),
}
"""What makes a run of `host_scan`, and its values, the default first."""

Run = SimpleNamespace
"""A run: a value for each of these, and the `functions` that its step applies."""

ALONE = ("interpolator", "matrix", "kernel", "message")
"""Functions that run on one device."""


def xs_of(run: Run) -> Any:
    def read(i: int) -> Any:
        factor = run.x_last if i == run.length - 1 else 1.0
        return np.full(run.width, np.sin(1.0 * i) * factor, run.dtype)

    if run.xs == "function":
        return read
    xs = np.stack([read(i) for i in range(run.length)])
    return jnp.asarray(xs) if run.xs == "jax" else xs


@cache
def sharding(devices: str) -> Any:
    order = jax.devices()[:4] if devices == "mesh" else jax.devices()[3::-1]
    return None if devices == "one" else NamedSharding(Mesh(np.array(order), ("a",)), P("a"))


def result(run: Run, directory: Path) -> bytes:
    """The bits of a value or of a gradient."""
    makers = {**NUMBERS, "policy": with_policy, **{name: make for name, (make, _) in SAME.items()}}
    names = [name for name in run.functions if run.devices == "one" or name not in ALONE]
    functions = [makers[name](vars(run)[name]) for name in names]
    options = {**run.options, "directory": directory, "save_every": 0, "version": run.version}
    if "plan" in options:
        options["plan"] = plan(run.length, options["plan"], block_size=1)
    if run.consumed:
        options["consume"] = lambda i, y: None
    operation = {"tanh": jnp.tanh, "sin": jnp.sin}[run.operation]

    def total(weight: Any, start: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            for function in functions:
                u = function(u)
            u = operation(weight * u) + x
            return u, jnp.sum(u)

        u, ys = host_scan(step, start, xs_of(run), run.length, run.reverse, **options)
        return run.cotangent * (jnp.sum(u**2) + (0 if run.consumed else jnp.sum(ys)))

    arguments = jnp.asarray(run.weight, run.dtype), jnp.full(run.width, run.start, run.dtype)
    if sharding(run.devices) is not None:
        arguments = arguments[0], jax.device_put(arguments[1], sharding(run.devices))
    if run.derivative == "none":
        return bits(total(*arguments))
    which = {"both": (0, 1), "weight": (0,), "start": (1,)}[run.derivative]
    return bits(jax.value_and_grad(total, which)(*arguments))


SETTINGS = [name for name in FIELDS if name not in (*NUMBERS, "policy", *SAME)]


def base_of(seed: int) -> Run:
    """A run with a part of the functions, a part of whose settings are not the default."""
    draw = random.Random(seed)
    values = {name: default for name, (default, *_) in FIELDS.items()}
    for name in ("xs", "operation", "reverse", "options", "devices", "derivative"):
        if seed and draw.random() < 0.4:
            values[name] = draw.choice(FIELDS[name][1:])
    some = [*draw.sample([*NUMBERS, "policy"], 3), *draw.sample([*SAME], 1)]
    return Run(**values, functions=draw.sample(some, len(some)))


def changed_runs(base: Run, count: int, draw: random.Random) -> list[tuple[str, Run]]:
    """Those that differ from a run in one field, and its name. For what a function for xs returns,
    the version stands."""
    seen = [name for name in SETTINGS if name != "x_last" or base.xs != "function"]
    several = [draw.choice(base.functions) for _ in range(count - count // 3)]
    several += [draw.choice(seen) for _ in range(count // 3)]
    choices = {name: [x for x in FIELDS[name] if x != vars(base)[name]] for name in several}
    return [(name, Run(**{**vars(base), name: draw.choice(choices[name])})) for name in several]


@pytest.fixture
def world(tmp_path: Path) -> Any:
    FOLDER[:] = [tmp_path / "world"]
    FOLDER[0].mkdir()
    before = list(sys.path), dict(os.environ)
    yield
    sys.path[:] = before[0]
    os.environ.pop("A_FACTOR", None)


@pytest.mark.usefixtures("world", "compile_quickly")
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(i, marks=pytest.mark.slow) for i in range(6, 20))]
)
def test_the_world_changes(seed: int, monkeypatch: Patch, tmp_path: Path) -> None:
    """In ten ways. The first call ends somewhere, or not at all."""
    base, begun, draw = base_of(seed), tmp_path / "begun", random.Random(seed)
    with ends_at((None, 30, 60)[seed % 3], monkeypatch), suppress(Ended):
        result(base, begun)
    expected = result(base, tmp_path / "whole")
    for number, (name, run) in enumerate(changed_runs(base, 10, draw)):
        directory = tmp_path / str(number)
        shutil.copytree(begun, directory)
        try:
            found = result(run, directory)
        except ValueError as error:
            assert "has another run" in str(error) or "memory must be at least" in str(error)  # noqa: PT017
            assert contents(directory).keys() == contents(begun).keys()
            assert name not in SAME, name
        else:
            fresh = expected if name in SAME else result(run, tmp_path / f"fresh-{number}")
            assert found == fresh, name
    assert result(base, begun) == expected


@pytest.mark.usefixtures("world")
def test_the_process_and_its_hashes_change(tmp_path: Path) -> None:
    """A run that is over in another process, where sets have another order, is over here."""
    program = (
        "import conftest, sys; from pathlib import Path; from host import test_changes as changes\n"
        "changes.FOLDER[:] = [Path(sys.argv[1])]; changes.in_any_process(changes.FOLDER[0])\n"
    )
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", program, str(tmp_path / "other")]
    subprocess.run(command, check=True, env={**environment(), "PYTHONHASHSEED": "1"})
    before = contents(tmp_path / "other" / "run")
    assert before
    in_any_process(tmp_path / "other")
    assert before == contents(tmp_path / "other" / "run")


def in_any_process(folder: Path) -> None:
    run = base_of(0)
    names = ["policy", "names in any order", "set", "in jit", "rule", "module", "message"]
    run.functions, run.derivative, run.policy = names, "both", ("a", "b", "c", "d")
    result(run, folder / "run")


# Python functions


@pytest.mark.parametrize("where", ["xs", "step", "rule", "loop", "lowering"])
def test_python_functions_need_a_version(where: str, tmp_path: Path) -> None:
    """And the error says so before anything runs."""
    ran: list[Any] = []

    def times(u: Any) -> Any:
        ran.append(u)
        return 2 * np.asarray(u)

    def on_host(u: Any) -> Any:
        return jax.pure_callback(times, jax.ShapeDtypeStruct(u.shape, u.dtype), u)

    def read(i: int) -> Any:
        ran.append(i)
        return np.float64(i)

    steps: dict[str, Function] = {
        "xs": lambda u: u,
        "step": on_host,
        "rule": with_reverse_rule(lambda u: u, lambda _, ct: on_host(ct)),
        "loop": lambda u: checkpointed_scan(lambda u, _: (on_host(u), None), u, length=2)[0],
        "lowering": lambda u: eqx.internal.noinline(lambda u: 2 * u)(u),
    }

    def value(start: Any, **options: Any) -> Any:
        step = lambda u, x: (steps[where](u) + (0 if x is None else x), None)  # noqa: E731
        xs = read if where == "xs" else None
        return host_scan(step, start, xs, 3, directory=tmp_path / "run", **options)[0]

    run = jax.value_and_grad(value) if where == "rule" else value
    name = {"xs": "xs is a function", "lowering": "step calls"}.get(where, "step calls .*times")
    with pytest.raises(ValueError, match=f"version must not be None here.*{name}"):
        run(1.0)
    assert not ran
    assert not (tmp_path / "run").exists()
    if where == "lowering":  # whose text has a number that is never the same
        return
    assert run(1.0, version="1") == run(1.0, version="1")
    with pytest.raises(ValueError, match=r"has another run, which differs .* in the version"):
        run(1.0, version="2")


def test_an_object_with_a_known_function_in_it_is_not_known(tmp_path: Path) -> None:
    class Callback:
        func = staticmethod(eqx.error_if)  # of a module whose callbacks change no result

        def __call__(self, u: Any) -> Any:
            return np.asarray(u)

    def step(u: Any, _: Any) -> Any:
        return jax.pure_callback(Callback(), jax.ShapeDtypeStruct(u.shape, u.dtype), u), None

    with pytest.raises(ValueError, match="version must not be None here"):
        host_scan(step, 1.0, None, 3, directory=tmp_path / "run")


def test_a_function_that_is_called_is_the_one_of_the_call() -> None:
    """Though the program that calls it is the same."""

    def value(by: float) -> Any:
        function = lambda u: by * np.asarray(u)  # noqa: E731
        step = lambda u, _: (jax.pure_callback(function, u, u), None)  # noqa: E731
        return host_scan(step, jnp.float32(1), length=3)[0]

    assert [float(value(by)) for by in (1.0, 2.0, 3.0)] == [1.0, 8.0, 27.0]


def test_a_constant_that_changes_in_place_between_two_calls() -> None:
    table = np.ones(2)
    step = lambda u, _: (jax.jit(lambda u: u * table)(u), None)  # noqa: E731
    for by in (1.0, 2.0, 3.0):
        table[:] = by
        found, _ = host_scan(step, jnp.ones(2), length=2)
        np.testing.assert_array_equal(found, [by**2] * 2)


# What the error says


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"power": 3}, "the step"),
        ({"weight": 0.6}, "the inputs"),
        ({"checkpoints": 2}, r"the checkpoints \(3 there, 2 here\)\."),
        ({"length": 8}, r"the length \(9 there, 8 here\)"),
        ({"memory": "2kB", "checkpoints": None}, r"the memory \(None there, '2kB' here\)"),
        ({"is_value": True, "checkpoints": None}, "the derivatives"),
        ({"ct": 2.0}, "the cotangents of the results"),
        (
            {"version": 2},
            r"the version \(None there, 2 here\)\. .*, call .* was called there; .* another",
        ),
        ("SCHEDULE", "the version of the schedule"),
        ("LAYOUT", "the version of the layout"),
    ],
)
def test_another_run_is_refused(
    changed: Any, differs: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    expected, before = bits(small_run(tmp_path)), contents(tmp_path)
    with monkeypatch.context() as patched:
        if isinstance(changed, str):
            patched.setattr(run_directory, changed, 1000)
        options = {} if isinstance(changed, str) else changed
        with pytest.raises(ValueError, match=f"has another run, which differs .*{differs}"):
            small_run(tmp_path, **options)
    assert contents(tmp_path) == before
    assert bits(small_run(tmp_path)) == expected


def test_an_array_that_is_copied_on_write_is_not_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "xs.npy", np.zeros(3))
    digests = []
    for changed in (0.0, 1.0):
        array = np.load(tmp_path / "xs.npy", mmap_mode="c")
        array[1] = changed
        digests.append(digest_of_array(array))
    assert digests[0] != digests[1]


def test_ys_in_a_local_class(tmp_path: Path) -> None:
    class Local:
        def __init__(self, y: Any) -> None:
            self.y = y

    jax.tree_util.register_pytree_node(Local, lambda x: ([x.y], None), lambda _, y: Local(*y))
    step = lambda u, _: (u * 2, Local(u))  # noqa: E731
    for _ in range(2):
        _, ys = host_scan(step, 1.0, length=5, directory=tmp_path, save_every=0)
        np.testing.assert_array_equal(ys.y, 2.0 ** np.arange(5))


def test_a_run_goes_on_by_its_own_plan(monkeypatch: Patch, tmp_path: Path) -> None:
    """Whatever would be chosen today."""
    budget: dict[str, Any] = {"checkpoints": None, "memory": 100}
    expected = bits(small_run(tmp_path / "whole", **budget))
    with ends_at(100, monkeypatch), pytest.raises(Ended):
        small_run(tmp_path / "run", **budget)
    other = plan(9, 1, block_size=1)
    monkeypatch.setattr(Options, "resolve", lambda *_, **__: other)
    assert bits(small_run(tmp_path / "run", **budget)) == expected


def test_the_version_of_the_schedule_is_that_of_its_actions() -> None:
    """If this fails, saved runs would go on elsewhere: give `SCHEDULE` another number, and write
    the new digest here."""
    plans = [plan(n, s, block_size=1) for n in (1, 2, 17, 100) for s in (1, 3, 20)]
    storages = [HostMemory(checkpoints=3, transfer=0.5), Disk("", transfer=2.0)]
    plans += [plan(50, s, block_size=1, storage=x) for s in (1, 4) for x in storages]
    actions = [[(type(a).__name__, *a) for a in each] for each in plans]
    digest = hashlib.sha256(repr(actions).encode()).hexdigest()
    assert (SCHEDULE, digest[:16]) == (2, "3ff57ca1331de478")
