"""One thing changes between two calls of `host_scan` with one directory: the second is refused, or
returns what a run from the beginning returns. Never another run's result."""

import hashlib
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, cached_property, lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from parity.loops import with_reverse_rule
from test_host_scan_resume import Ended, bits, contents, ends_at
from test_host_scan_resume import run as small_run

from jax_revolve import Disk, HostMemory, checkpointed_scan, host_scan, plan
from jax_revolve.host import directory as run_directory
from jax_revolve.host.fingerprint import Contents
from jax_revolve.schedule.actions import SCHEDULE
from jax_revolve.schedule.selection import Request

Patch = pytest.MonkeyPatch
TABLE = np.ones(1)
CODES: Any = {1.0: lambda u: u * 2, 1.25: lambda u: u + 2}


class Solver:
    """An object with a method that a callback is."""

    def __init__(self, by: float) -> None:
        self.by = by

    def run(self, u: Any) -> Any:
        return u * self.by


def times_table(by: float) -> Any:
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


def on_host(function: Any) -> Any:
    """As a function of JAX, whose derivative is taken to be 1."""

    def run(u: Any) -> Any:
        like = jax.ShapeDtypeStruct(u.shape, u.dtype)
        on_arrays = lambda u: np.asarray(function(np.asarray(u)), u.dtype)  # noqa: E731
        return jax.pure_callback(on_arrays, like, u)

    return with_reverse_rule(run, lambda _, ct: ct)


def of_global(by: float) -> Any:
    TABLE[0] = by
    return lambda u: u * TABLE[0]


def cached(by: float) -> Any:
    known = lru_cache(lambda: by)
    return lambda u: u * known()


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "table in jit": lambda by: jax.jit(times_table(by)),
    "table in scan": lambda by: (
        lambda u: lax.scan(lambda u, _: (jax.jit(times_table(by))(u), None), u, length=2)[0]
    ),
    "table in branch": lambda by: lambda u: lax.cond(u[0] < 9, times_table(by), lambda u: u, u),
    "rule": with_rule,
    "rule with a table": lambda by: with_rule(np.full(1, by, np.float32)),
    "rule with an argument": with_argument,
    "forward rule": with_forward_rule,
    "rule in a loop": rule_in_loop,
    "callback's closure": lambda by: on_host(lambda u: u * by),
    "callback's default": lambda by: on_host(lambda u, by=by: u * by),
    "callback's partial": lambda by: on_host(partial(lambda by, u: u * by, by)),
    "callback's object": lambda by: on_host(Solver(by).run),
    "callback's cache": lambda by: on_host(cached(by)),
    "callback's code": lambda by: on_host(CODES[by]),
    "callback's helper": lambda by: on_host((lambda helper: lambda u: helper(u))(CODES[by])),
    "callback's global": lambda by: on_host(of_global(by)),
}
"""Functions that a step applies, with a number in a place of which the step's jaxpr says little."""

FIELDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(HIDDEN, (1.0, 1.25)),
    **dict.fromkeys(("x_closure", "x_last"), (1.0, 1.5)),
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
    "derivative": ("both", "weight", "start", "none"),
    "cotangent": (1.0, -1.0),
    "consumed": (False, True),
    "devices": ("one", "mesh", "reversed"),
    "version": (None, 1, 2),
}
"""What makes a run of `host_scan`, and its values, the default first."""

Run = SimpleNamespace
"""A run: a value for each of these."""


def xs_of(run: Run) -> Any:
    closure, last = run.x_closure, run.x_last

    def read(i: int) -> Any:
        """The same first slice."""
        factor = closure * (last if i == run.length - 1 else 1.0)
        return np.full(run.width, np.sin(1.0 * i) * factor if i else 0.0, run.dtype)

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
    names = [name for name in HIDDEN if run.devices == "one" or "callback" not in name]
    hidden = [HIDDEN[name](vars(run)[name]) for name in names]
    options = {**run.options, "directory": directory, "save_every": 0, "version": run.version}
    if "plan" in options:
        options["plan"] = plan(run.length, options["plan"], block_size=1)
    if run.consumed:
        options["consume"] = lambda i, y: None
    operation = {"tanh": jnp.tanh, "sin": jnp.sin}[run.operation]

    def total(weight: Any, start: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            for function in hidden:
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


def base_of(seed: int) -> Run:
    """A run, a part of whose fields have other values than by default."""
    draw = random.Random(seed)
    values = {name: default for name, (default, *_) in FIELDS.items()}
    for name in ("xs", "operation", "reverse", "options", "devices", "derivative"):
        if seed and draw.random() < 0.4:
            values[name] = draw.choice(FIELDS[name][1:])
    return Run(**values)


def changed_runs(base: Run) -> list[Run]:
    """Those that differ from a run in one field."""
    return [
        Run(**{**vars(base), name: value})
        for name, values in FIELDS.items()
        for value in values
        if value != getattr(base, name)
    ]


@pytest.mark.parametrize(
    ("seed", "some"),
    [
        (0, slice(3, None, 9)),
        *(pytest.param(i, slice(None), marks=pytest.mark.slow) for i in range(12)),
    ],
)
def test_a_change_is_refused(seed: int, some: slice, monkeypatch: Patch, tmp_path: Path) -> None:
    """Every ninth of some fifty changes here, and over three hundred in the slow tests. The first
    call ends somewhere, or not at all."""
    base, begun = base_of(seed), tmp_path / "begun"
    with ends_at((None, 60, 150)[seed % 3], monkeypatch) as events:
        try:
            result(base, begun)
        except Ended:
            assert len(events) > 60
    refused = 0
    for number, run in enumerate(changed_runs(base)[some]):
        directory = tmp_path / str(number)
        shutil.copytree(begun, directory)
        try:
            found = result(run, directory)
        except ValueError as error:
            assert "has another run" in str(error) or "memory must be at least" in str(error)  # noqa: PT017
            assert contents(directory).keys() == contents(begun).keys()
            refused += 1
        else:
            assert found == result(run, tmp_path / f"fresh-{number}"), run
    assert result(base, begun) == result(base, tmp_path / "whole")
    assert refused


# What the error says


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({"power": 3}, "the step"),
        ({"weight": 0.6}, "the inputs"),
        ({"checkpoints": 2}, "the options"),
        ({"is_value": True, "checkpoints": None}, "the derivatives"),
        ({"ct": 2.0}, "the cotangents of the results"),
        ({"version": 2}, "the version"),
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
        with pytest.raises(ValueError, match=f"has another run: .*{differs}.* differ"):
            small_run(tmp_path, **options)
    assert contents(tmp_path) == before
    assert bits(small_run(tmp_path)) == expected


def test_what_cannot_be_pickled_needs_a_version(tmp_path: Path) -> None:
    file = (tmp_path / "forcing").open("w+b")
    file.write(np.arange(6.0).tobytes())

    def read(i: int) -> Any:
        file.seek(8 * i)
        return np.frombuffer(file.read(8))[0]

    def value(**options: Any) -> Any:
        step = lambda u, x: (u + x, None)  # noqa: E731
        return host_scan(step, 0.0, read, 6, directory=tmp_path / "run", **options)[0]

    with file, pytest.raises(ValueError, match=r"version must not be None .*read, file of xs"):
        value()
    with (tmp_path / "forcing").open("rb") as file:
        assert value(version="1") == value(version="1") == 15
        with pytest.raises(ValueError, match="has another run: the version differ"):
            value(version="2")


# What a function for xs is made of


def with_attribute(value: Any) -> Any:
    """An object of a user's class."""
    return type("Reader", (), {"get": value})()


def in_module(name: str) -> ModuleType:
    """A module of the user's."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = f"/models/{name}.py"
    return module


def of_module(by: float, read: Callable[[Any], Any]) -> Any:
    module: Any = in_module("a_model_of_a_user")
    module.by = by
    return read(module)


def with_local_import(by: float) -> Any:
    def read(i: int) -> Any:
        from a_model_of_a_user import by  # pyright: ignore[reportMissingImports]

        return by * i

    return of_module(by, lambda _: read)


def with_function_attribute(by: float) -> Any:
    def read(i: int) -> Any:
        return vars(read)["by"] * i

    vars(read)["by"] = by
    return read


class Decorated:
    """A decorator that is an object."""

    def __init__(self, by: float) -> None:
        self.__wrapped__ = np.sin
        self.by = by


def added_to(cls: Any, *arguments: Any) -> Callable[[float], Any]:
    def make(by: float) -> Any:
        value = type("Added", (cls,), {})(*arguments)
        value.by = by
        return value

    return make


MADE: dict[str, Callable[[Any], Any]] = {
    "class attribute": with_attribute,
    "inherited attribute": lambda by: type("Heir", (type(with_attribute(by)),), {})(),
    "cached method": lambda by: with_attribute(lru_cache(CODES[by])),
    "cached property": lambda by: with_attribute(cached_property(CODES[by])),
    "method of no file": lambda by: type("R", (), {"__module__": "a", "get": CODES[by]})(),
    "metaclass": lambda by: type("Meta", (type,), {"by": by})("R", (), {}),
    "decorator": Decorated,
    "attribute of a function": with_function_attribute,
    "local import": with_local_import,
    "module in a closure": lambda by: of_module(by, lambda module: lambda i: module.by),
    "vmap": lambda by: jax.vmap(CODES[1.0], int(by > 1)),
    "grad": lambda by: jax.grad(lambda x, y: x * y, int(by > 1)),
    "partial of JAX": lambda by: jax.tree_util.Partial(
        CODES[1.0], jnp.zeros(2000).at[1000].set(by)
    ),
    "ufunc of JAX": lambda by: jnp.frompyfunc(CODES[by], 1, 1),
    "dict": lambda by: type("D", (dict,), {"__missing__": CODES[by]})(),
    "default of a dict": lambda by: defaultdict(CODES[by]),
    "number": added_to(float, 1.0),
    "text": added_to(str, "a"),
    "list": added_to(list),
    "array": added_to(np.ndarray, (2,), np.float32, b"01234567"),
}
"""What a function for xs may be, or refer to, with a number in it."""


@pytest.mark.parametrize("name", MADE)
def test_a_fingerprint_is_of_all_that_a_value_is_made_of(name: str) -> None:
    first, same, other = (Contents().of("xs", MADE[name](by)) for by in (1.0, 1.0, 1.25))
    assert first == same != other


def test_an_array_that_is_copied_on_write_is_not_its_file(tmp_path: Path) -> None:
    np.save(tmp_path / "xs.npy", np.zeros(3))
    digests = []
    for changed in (0.0, 1.0):
        array = np.load(tmp_path / "xs.npy", mmap_mode="c")
        array[1] = changed
        digests.append(Contents().of("xs", array))
    assert digests[0] != digests[1]


def test_what_refuses_to_be_pickled_needs_a_version() -> None:
    """By whatever error. The text of a compiled program has no constants."""

    class Dataset:
        def __reduce__(self) -> Any:
            raise NotImplementedError("Dataset is not picklable")

    for value in (Dataset(), jax.jit(jnp.sin).lower(1.0).compile()):
        with pytest.raises(ValueError, match="version must not be None here"):
            Contents().of("xs", value)
        assert Contents(1).of("xs", value)


def test_modules_that_a_callback_imports(tmp_path: Path, monkeypatch: Patch) -> None:
    """They are the same before it runs for the first time. It may expect that one is missing."""
    (tmp_path / "late_user.py").write_text(
        "def run(u):\n"
        "    try:\n"
        "        from .missing import FACTOR\n"
        "    except ImportError:\n"
        "        import late_constant\n"
        "    return u * late_constant.FACTOR\n"
    )
    (tmp_path / "late_constant.py").write_text("FACTOR = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = import_module("late_user").run

    def value() -> Any:
        step = lambda u, _: (on_host(run)(u), None)  # noqa: E731
        return host_scan(step, jnp.float32(1), length=3, directory=tmp_path / "run")[0]

    assert value() == value() == 8
    monkeypatch.setattr("late_constant.FACTOR", 3.0)
    with pytest.raises(ValueError, match="has another run: the step differ"):
        value()


# What does not count


def test_the_lines_that_an_error_comes_from() -> None:
    """`equinox.error_if` keeps them in its callback, and random numbers."""

    def digest() -> str:
        step = lambda u: eqx.error_if(u, u > 9, "large")  # noqa: E731
        return Contents().of("step", jax.make_jaxpr(step)(1.0))

    first = digest()
    with jax.default_matmul_precision("highest"):  # without which JAX has traced it already
        assert digest() == first


def test_what_jax_finds_of_a_derivative() -> None:
    """It keeps the forward rule's jaxpr in the equation, once it is known."""
    rule = with_rule(2.0)
    step = jax.jit(lambda u: jax.nn.relu(rule(u)))
    digest = lambda: Contents().of("step", jax.make_jaxpr(step)(1.0))  # noqa: E731
    first = digest()
    jax.grad(step)(1.0)
    assert digest() == first


def test_modules_caches_and_recursion_are_known() -> None:
    def recursive(i: int) -> int:
        return i if i < 1 else recursive(i - 1)

    known: dict[Any, Any] = {"self": recursive}
    known["itself"] = known
    for each in ((recursive, np.sin, np.random, jnp.sin), (known,)):
        assert Contents().of("f", *each) == Contents().of("f", *each)


def test_colors_and_addresses_do_not_count() -> None:
    """JAX prints what it is made of in colors in a terminal: a run that began there did not go on
    in a pipe."""

    class Printed:
        __module__ = "jax.printed"
        text = ""

        def __repr__(self) -> str:
            return Printed.text

    digests = []
    for Printed.text in ("f at 0x12", "\x1b[31mf\x1b[0m at 0xab", "g"):
        digests.append(Contents().of("f", Printed()))
    assert digests[0] == digests[1] != digests[2]


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
    monkeypatch.setattr(Request, "resolve", lambda *_: other)
    assert bits(small_run(tmp_path / "run", **budget)) == expected


def test_the_version_of_the_schedule_is_that_of_its_actions() -> None:
    """If this fails, saved runs would go on elsewhere: give `SCHEDULE` another number, and write
    the new digest here."""
    plans = [plan(n, s, block_size=1) for n in (1, 2, 17, 100) for s in (1, 3, 20)]
    storages = [HostMemory(checkpoints=3, transfer=0.5), Disk("", transfer=2.0)]
    plans += [plan(50, s, block_size=1, storage=x) for s in (1, 4) for x in storages]
    actions = [[(type(a).__name__, *a) for a in each] for each in plans]
    digest = hashlib.sha256(repr(actions).encode()).hexdigest()
    assert (SCHEDULE, digest[:16]) == (1, "ad00f027134c3f7e")
