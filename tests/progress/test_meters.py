"""What a meter is told, and what a loop with progress computes."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.sharding import Mesh, PartitionSpec
from parity.transformations import ALL
from support.calls import option
from support.record import Record

from jax_revolve import bounded_while_loop, checkpointed_fori_loop, checkpointed_scan
from jax_revolve.progress import meters
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.step import reports

pytestmark = pytest.mark.usefixtures("compile_quickly", "default_precision")


meter = Record()
N = 12
FORWARD, REVERSE = ("forward", N, N), ("reverse", N, N)
FORWARD_WHILE = ("forward", None, N)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if steps were so slow that each may be reported."""
    monkeypatch.setattr(reports, "is_estimated", lambda _: False)
    jax.clear_caches()
    yield
    jax.clear_caches()


def scan(x: Any, **options: Any) -> Any:
    step = lambda x, _: (jnp.sin(x), None)  # noqa: E731
    return checkpointed_scan(step, x, length=N, **{"progress": meter, **options})[0]


def count_down(x: Any, steps: Any, **options: Any) -> Any:
    step = lambda state: (jnp.sin(state[0]), state[1] - 1)  # noqa: E731
    options = {"max_steps": 40, "progress": meter, **options}
    return bounded_while_loop(lambda state: state[1] > 0, step, (x, steps), **options)[0]


while_loop = partial(count_down, steps=N)


def until(x: Any, **options: Any) -> Any:
    """Eight steps and as many more as `x` says."""
    return count_down(x, 8 + lax.stop_gradient(x), **options)


LOOPS = {
    "scan": scan,
    "all": partial(scan, checkpoints="all", block_size=1),
    "blocks": partial(scan, checkpoints=2, block_size=5),
    "reverse": partial(scan, reverse=True),
    "while": while_loop,
    "while, blocks": partial(while_loop, checkpoints=2, block_size=5),
    "while, unbounded": partial(while_loop, max_steps=None, checkpoints=3),
}


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("name", LOOPS)
def test_every_step_is_reported_once(name: str) -> None:
    loop, forward = LOOPS[name], FORWARD_WHILE if "while" in name else FORWARD
    gradient = jax.jit(jax.grad(loop))
    assert meter.of(lambda: loop(0.5)) == [forward]
    assert meter.bars[0][2] == list(range(1, N + 1))
    for _ in range(2):  # every run of a compiled program has bars of its own
        assert meter.of(lambda: gradient(0.5)) == [forward, REVERSE]
        assert [bar[2] for bar in meter.bars] == [list(range(1, N + 1))] * 2


X = np.array([1.0, 4.0, 2.0, 3.0], np.float32)


def _shards(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    mesh = Mesh(np.array(jax.devices()[:4]), ("device",))
    spec = PartitionSpec("device")
    return jax.shard_map(jax.vmap(f), mesh=mesh, in_specs=spec, out_specs=spec)


SWEEPS = {"jvp": 0, "linearize": 0, "jacfwd": 0, "grad_without_jit": 1, "vmap_of_grad": 1}
SWEEPS |= {"grad_of_vmap": 1, "hessian": 1, "grad_inside_checkpoint": 1, "inside_cond": 1}
SWEEPS |= {"grad_inside_scan": 2, "shard_map": 2}
"""How many reverse sweeps a transformation has, one of values and tangents if none."""


@pytest.mark.unchecked
@pytest.mark.parametrize("name", SWEEPS)
def test_one_bar_for_each_sweep(name: str) -> None:
    """Of a scan and a while loop in turn."""
    loop, forward = ((scan, FORWARD), (while_loop, FORWARD_WHILE))[[*SWEEPS].index(name) % 2]
    bars = meter.of(lambda: ALL[name](loop, (jnp.float32(0.5),)))
    assert sorted(bars) == sorted([forward, REVERSE] * SWEEPS[name] or [forward])


@pytest.mark.unchecked
def test_what_the_coming_checkpoint_recomputes_is_not_shown() -> None:
    with option("jax_remat3"):
        test_one_bar_for_each_sweep("grad_inside_checkpoint")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("gradient", "bars"),
    [
        (jax.vmap(jax.grad(until)), [("forward", None, 12), ("reverse", 12, 12)]),
        (
            jax.vmap(jax.grad(partial(until, block_size=3))),
            [("forward", None, 12), ("reverse", 12, 12)],
        ),
        (_shards(jax.grad(until)), [("forward", None, 9), ("reverse", 9, 9)]),
        (
            jax.vmap(jax.grad(lambda x: lax.cond(x > 2, until, jnp.sin, x))),
            [("forward", None, 12), ("reverse", 12, 12)],
        ),
    ],
    ids=["vmap", "blocks", "devices", "batched branch"],
)
def test_the_longest_example_and_the_first_device_count(gradient: Any, bars: Any) -> None:
    assert meter.of(lambda: jax.jit(gradient)(X)) == bars


def test_lengths() -> None:
    def loss(x: Any, length: int) -> Any:
        step = lambda x, _: (jnp.sin(x), x)  # noqa: E731
        return jnp.sum(checkpointed_scan(step, x, length=length, progress=meter)[1])

    assert meter.of(lambda: jax.grad(loss)(0.5, 0)) == []
    assert meter.of(lambda: jax.grad(loss)(0.5, 1)) == [("forward", 1, 1), ("reverse", 1, 1)]
    going: Any = lambda x: x > 0  # noqa: E731
    stuck = partial(bounded_while_loop, going, jnp.sqrt, max_steps=5, throw=False)
    for start, steps in ((1.0, 5), (-1.0, 0)):
        bars = meter.of(lambda x=start: jax.grad(partial(stuck, progress=meter))(x))
        assert bars == [("forward", None, steps), ("reverse", steps, steps)]


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("unroll", [5, True])
def test_unrolled(unroll: Any) -> None:
    assert meter.of(lambda: scan(0.5, unroll=unroll)) == [FORWARD]


def test_fori_loop() -> None:
    def power(x: Any, n: Any) -> Any:
        return checkpointed_fori_loop(0, n, lambda _, y: y * x, 1.0, max_steps=40, progress=meter)

    assert meter.of(lambda: jax.grad(power)(1.1, N)) == [FORWARD, REVERSE]
    assert meter.of(lambda: jax.jit(jax.grad(power))(1.1, N)) == [FORWARD_WHILE, REVERSE]


@pytest.mark.unchecked
def test_inner_loops_are_not_shown_again_when_they_are_run_again() -> None:
    outer = partial(checkpointed_scan, lambda x, _: (scan(x), None), length=3, checkpoints=1)
    for block_size in (1, 2):
        loop = partial(outer, block_size=block_size, progress=meter)
        bars = meter.of(lambda f=loop: jax.jit(jax.grad(lambda x: f(x)[0]))(0.5))
        assert sorted(bars) == sorted(
            [FORWARD, REVERSE] * 3 + [("forward", 3, 3), ("reverse", 3, 3)]
        )


def test_results_are_the_same() -> None:
    step = lambda x, y: (jnp.sin(x * y), x)  # noqa: E731
    grows: Any = lambda x: jnp.all(x < 9)  # noqa: E731
    by_a_tenth: Any = lambda x: x * 1.1  # noqa: E731
    loops: list[Any] = [
        partial(checkpointed_scan, step, xs=jnp.arange(9.0), block_size=4),
        partial(bounded_while_loop, grows, by_a_tenth, max_steps=50),
    ]
    for loop in loops:
        total = lambda x, p, f=loop: sum(map(jnp.sum, jax.tree.leaves(f(x, progress=p))))  # noqa: E731
        both = jax.jit(jax.value_and_grad(total), static_argnums=1)
        jax.tree.map(np.testing.assert_array_equal, both(X, False), both(X, meter))


def test_reports_are_thinned() -> None:
    """A hundred for a loop of known length, however short its steps; fewer if it is quick."""

    def heavy(x: Any) -> Any:  # as far as an estimate can know
        return lax.while_loop(lambda s: s[1] < 1, lambda s: (jnp.sin(s[0]), s[1] + 1), (x, 0))[0]

    def run(step: Callable[[Any], Any]) -> Any:
        scan = partial(checkpointed_scan, length=1000, progress=meter)
        f = jax.jit(lambda x: scan(lambda x, _: (step(x), None), x)[0])
        assert meter.of(lambda: f(0.5)) == [("forward", 1000, 1000)]
        return meter.bars[0][2]

    assert run(heavy) == [*range(10, 1001, 10)]
    assert run(jnp.sin) == [1000]


def test_a_batch_takes_longer_and_reports_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reported as if it were one example."""
    monkeypatch.setattr(reports, "BETWEEN_REPORTS", 1e5)

    def loss(x: Any) -> Any:
        step = lambda x, _: (jnp.sin(x), None)  # noqa: E731
        return checkpointed_scan(step, x, length=300, progress=meter)[0].sum()

    examples = jnp.ones((1000, 5))
    total = lambda x: jnp.sum(jax.vmap(loss)(x))  # noqa: E731
    few, several = jax.jit(jax.grad(loss)), jax.jit(jax.grad(total))
    for f, x, is_frequent in [(few, examples[0], False), (several, examples, True)]:
        meter.of(lambda f=f, x=x: f(x))
        assert [(len(bar[2]) > 3) for bar in meter.bars] == [is_frequent, is_frequent]


@pytest.mark.unchecked
@pytest.mark.usefixtures("every_step")
def test_a_report_is_one_more_branch_of_the_same_loop() -> None:
    """The program has as many loops, and no second copy of the step."""

    def counts(progress: Any) -> tuple[int, int, int]:
        jax.clear_caches()
        gradient = jax.grad(partial(scan, progress=progress, checkpoints=2, block_size=5))
        text = jax.jit(gradient).lower(0.5).as_text()
        return tuple(text.count(word) for word in ("stablehlo.while", "sine", "callback("))  # pyright: ignore[reportReturnType]

    loops, sines, callbacks = counts(meter)
    assert (loops, sines, 0) == counts(False)
    assert callbacks > 0


@pytest.mark.parametrize("method", ["start", "update", "close"])
def test_a_meter_that_fails_costs_no_gradient(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is one warning, or a line of text where warnings are errors."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("no bar")

    failing: Any = type("Failing", (Record,), {method: fail})
    message = "The progress meter Failing raised ZeroDivisionError: no bar."

    def gradient(meter: ProgressMeter) -> float:
        result = float(jax.jit(jax.grad(partial(scan, progress=meter)))(0.5))
        jax.effects_barrier()
        return result

    first = failing()
    with pytest.warns(RuntimeWarning, match=message) as caught:
        assert gradient(first) == gradient(first) == gradient(Record())
    assert len(caught) == 1
    assert len(first.bars) == (method != "start")
    assert gradient(failing()) == gradient(Record())
    assert capsys.readouterr().err.count(message) == 1


def test_a_loop_of_no_steps_is_shown() -> None:
    assert meter.of(lambda: jax.grad(partial(count_down, steps=0))(0.5))[-1] == ("reverse", 0, 0)


def test_bars_need_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    meters._default_meter.cache_clear()
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        scan(0.5, progress=True)


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    broken = [True]

    def check(i: Any) -> None:
        if broken[0] and i == 7:
            raise ZeroDivisionError("Broken")

    def step(x: Any, i: Any) -> Any:
        jax.debug.callback(check, i)
        return jnp.sin(x), None

    run = jax.jit(lambda x: checkpointed_scan(step, x, jnp.arange(N), progress=meter)[0])
    meter.bars.clear()
    with pytest.raises(Exception, match="Broken"):
        jax.block_until_ready((run(0.5), jax.effects_barrier()))
    assert len(meter.bars) == 1
    broken[0] = False
    assert meter.of(lambda: run(0.5)) == [FORWARD]


def test_a_parameter_of_the_same_name_is_left_alone() -> None:
    """Loops inside of a loop show no forward sweep again; other primitives are none of our own."""
    theirs = Primitive("theirs")
    mlir.register_lowering(theirs, mlir.lower_fun(lambda x, progress: x * progress, False))
    theirs.def_impl(lambda x, progress: x * progress)
    theirs.def_abstract_eval(lambda x, progress: x)
    ad.deflinear2(theirs, lambda ct, x, progress: [theirs.bind(ct, progress=progress)])

    def of(run: Any) -> Any:
        step = lambda x, _: (jnp.sin(theirs.bind(x, progress=2)), None)  # noqa: E731
        return jax.grad(lambda x: run(step, x, length=N)[0])(0.3)

    np.testing.assert_allclose(of(partial(checkpointed_scan, progress=meter)), of(lax.scan))
