"""The table of JAX's operations: nothing twice, what of the installed JAX is not named, and a trial
of each operation that is said to compute the examples of a batch one by one."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive, primitives

from jax_revolve.jaxprs.evaluate import run_each, run_in_place
from jax_revolve.jaxprs.inline import inlined
from jax_revolve.step import operations
from jax_revolve.step.operations import NAMED, having


def test_each_operation_has_one_row() -> None:
    rows = filter(None, operations._TABLE.splitlines())  # pyright: ignore[reportPrivateUsage]
    counts = Counter(name for row in rows for name in row.partition(": ")[2].split())
    assert [name for name, count in counts.items() if count > 1] == []


NOT_NAMED = {
    *("all_gather", "all_to_all", "pmax", "pmin", "ppermute", "psum", "ragged_all_to_all"),
    *("call", "custom_lin", "get", "swap", "after_all", "create_token"),
    *("reduce_window", "reduce_xor", "rng_bit_generator", "rng_uniform"),
}
"""Collectives, programs of which nothing is known, references, tokens, reductions that we cannot
try, and numbers that are drawn for all examples at once."""


def test_what_is_not_named_is_known() -> None:
    """A new operation of JAX takes the safe way. This says that it has come: name it in the table
    if a property is worth it, and else here."""
    found = {p.name for p in vars(primitives).values() if isinstance(p, Primitive)}
    assert sorted(found - NAMED - NOT_NAMED) == []


# Whether examples are independent

OTHER = 3
"""The seed of the values that replace one example's."""


def floats(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.RandomState(seed).uniform(0.15, 0.85, shape), jnp.float32)


def indices(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.RandomState(seed).randint(0, 3, shape), jnp.int32)


def positive(seed: int) -> Any:
    return (lambda a: a @ a.T + 3 * jnp.eye(3))(floats(seed, 3, 3))


ARGUMENTS: list[Callable[[int], tuple[Any, ...]]] = [
    lambda s: (floats(s, 3, 3),),
    lambda s: (positive(s),),
    lambda s: (floats(s, 4),),
    lambda s: (floats(s, 3, 3), floats(s + 9, 3, 3)),
    lambda s: (floats(s, 3, 3), floats(s + 9, 3, 3), floats(s + 20, 3, 3)),
    lambda s: (positive(s), floats(s + 9, 3)),
    lambda s: (floats(s, 5), indices(s + 9, 2)),
    lambda s: (indices(s, 3, 3), indices(s + 9, 3, 3)),
    lambda s: (indices(s, 3, 3).astype(jnp.uint32),),
    lambda s: (indices(s, 3, 3) > 0, floats(s, 3, 3), floats(s + 9, 3, 3)),
    lambda s: (lax.complex(floats(s, 4, 4), floats(s + 9, 4, 4)),),
    lambda s: (floats(s, 2, 3, 6, 6),),
]


def pooled(start: float, of: Any) -> Any:
    return lambda x: lax.reduce_window(x, start, of, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


IMAGE = ARGUMENTS[-1]
WITH_INDICES = ARGUMENTS[6]
MORE: list[tuple[Any, Callable[[int], tuple[Any, ...]]]] = [
    (pooled(-np.inf, lax.max), IMAGE),
    (pooled(np.inf, lax.min), IMAGE),
    (pooled(0.0, lax.add), IMAGE),
    (pooled(1.0, lax.mul), IMAGE),
    (lambda x: jax.jvp(pooled(-np.inf, lax.max), (x,), (2 * x,)), IMAGE),
    (lambda x: lax.linalg.householder_product(x, x[0]), ARGUMENTS[0]),
    (lambda x, y: lax.linalg.lu_pivots_to_permutation(x[0].astype(jnp.int32), 3), ARGUMENTS[7]),
    (lambda x, k: lax.conv(x, k, (1, 1), "SAME"), lambda s: (*IMAGE(s), floats(s, 4, 3, 3, 3))),
    *(
        (lambda x, k, how=how: getattr(x.at[k], how)(0.4), WITH_INDICES)
        for how in ("set", "add", "subtract", "multiply", "min", "max")
    ),
    (lambda x, k: lax.dynamic_slice(x, k[:1], (2,)), WITH_INDICES),
    (lambda x, k: lax.dynamic_update_slice(x, x[:2], k[:1]), WITH_INDICES),
    (lambda x: lax.top_k(x, 2), ARGUMENTS[2]),
    (lambda x: lax.approx_max_k(x, 2), ARGUMENTS[2]),
    (lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * 1.5, (0,)), ARGUMENTS[2]),
    (lambda x: lax.reduce_precision(x, 5, 5), ARGUMENTS[2]),
    (lambda x: lax.bitcast_convert_type(x, jnp.int32), ARGUMENTS[2]),
    (lambda x: lax.pad(x, x[0], ((1, 1, 1),)), ARGUMENTS[2]),
    (lambda x: lax.expand_dims(x, (0,)), ARGUMENTS[2]),
    (lambda x: checkpoint_name(x, "a"), ARGUMENTS[2]),
    (lax.optimization_barrier, ARGUMENTS[2]),
    (lambda a, x: lax.igamma(a[0] + 1, x), ARGUMENTS[3]),
    (lambda a, x: lax.igammac(a[0] + 1, x), ARGUMENTS[3]),
    (lambda a, b, x: lax.betainc(a + 1, b + 1, x), ARGUMENTS[4]),
    (lambda a, x: lax.zeta(a + 2, x), ARGUMENTS[3]),
    (lambda a, x: lax.polygamma(jnp.round(a) + 1, x + 1), ARGUMENTS[3]),
    (lambda a, b: lax.linalg.triangular_solve(a, b), ARGUMENTS[3]),
    (lambda a, b, c: lax.linalg.tridiagonal_solve(a[0], b[0] + 3, c[0], a), ARGUMENTS[4]),
    (lambda a: jnp.linalg.svd(a, full_matrices=False), ARGUMENTS[0]),
    (lambda a: lax.linalg.qr(a, pivoting=True), ARGUMENTS[0]),
    (lambda a, b: lax.linalg.symmetric_product(a, b), ARGUMENTS[3]),
    (lambda x: jax.random.bits(jax.random.wrap_key_data(x[0, :2]), (3,)), ARGUMENTS[8]),
    (lambda x: jax.random.key_data(jax.random.key(x[0, 0])), ARGUMENTS[8]),
    (lambda x: jax.random.key_data(jax.random.fold_in(jax.random.key(1), x[0, 0])), ARGUMENTS[8]),
    (lambda x: jax.random.key_data(jax.random.split(jax.random.key(x[0, 0]))), ARGUMENTS[8]),
    (lambda x: jax.random.key_data(jax.random.clone(jax.random.key(x[0, 0]))), ARGUMENTS[8]),
    (lambda x: jax.random.gamma(jax.random.key(x[0, 0]), 2.0), ARGUMENTS[8]),
]

NOT_TRIED = {
    *(
        "axis_index",
        "expand_dims",
        "device_put",
        "layout_constraint",
        "reshard",
        "sharding_constraint",
        "pvary",
    ),
    *("empty", "empty2", "iota", "zeros_like", "broadcast_to", "platform_index", "stop_gradient"),
    *("cholesky_update", "geqp3", "geqrf", "ormqr", "scaled_dot", "ragged_dot_general", "tie"),
    *("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "iota_2x32_shape"),
    *("select_and_scatter", "scatter_add", "stack", "unstack", "mulhi", "eq_to", "le_to", "lt_to"),
    *("one_minus_square", "polynomial", "log2", "random_gamma_grad", "copysign"),
}
"""Places and layouts, operations without operands, and those of some versions or devices alone."""


def programs() -> Iterator[tuple[Any, Callable[[int], tuple[Any, ...]]]]:
    special, linalg = jax.scipy.special, jax.scipy.linalg
    for module in (jnp, jnp.linalg, jnp.fft, lax, lax.linalg, special, linalg, jax.nn):
        for name, function in sorted(vars(module).items()):
            is_public = not name.startswith("_") and callable(function)
            if is_public and not isinstance(function, type):
                yield from product([function], ARGUMENTS)
    yield from MORE


def traced(function: Any, arguments: tuple[Any, ...]) -> Iterator[Any]:
    """The programs of a function and of its pullback."""

    def gradient(*arguments: Any) -> Any:
        results, pull_back = jax.vjp(function, *arguments)
        return pull_back(jax.tree.map(jnp.ones_like, results))

    for each in (function, gradient):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield inlined(jax.make_jaxpr(each)(*arguments))
        except Exception:  # it is no function of these arguments
            return


def values_of(closed: Any, arguments: tuple[Any, ...]) -> list[list[Any]]:
    """The operands of each equation, as far as the program runs."""
    found: list[list[Any]] = []

    def run(eqn: Any, operands: list[Any]) -> Any:
        results = run_in_place(eqn, operands)
        found.append(operands)
        return results

    with suppress(Exception):  # some programs of complex numbers do not compile
        run_each(closed, jax.tree.leaves(arguments), run)
    return found


def is_independent(eqn: Any, operands: list[list[Any]]) -> bool:
    """Whether the results of other examples stay the same, bit by bit, if one example changes."""
    every = range(len(eqn.invars))
    for mask in {(True,) * len(every), *(tuple(i == j for i in every) for j in every)}:

        def results(*seeds: int, mask: tuple[bool, ...] = mask) -> Any:
            values = [
                jnp.stack([operands[seed][i] for seed in seeds]) if is_batched else operands[0][i]
                for i, is_batched in enumerate(mask)
            ]
            axes = [0 if is_batched else None for is_batched in mask]
            return jax.vmap(lambda *values: run_in_place(eqn, values), axes)(*values)

        try:
            before, after = results(0, 1, 2), results(0, OTHER, 2)
        except (TypeError, ValueError, NotImplementedError):  # JAX has no such batch
            continue
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            a, b = (jax.random.key_data(x) if is_key(x) else x for x in (a, b))
            if np.asarray(a)[[0, 2]].tobytes() != np.asarray(b)[[0, 2]].tobytes():
                return False
    return True


def is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.mark.slow
def test_independent_operations_compute_examples_one_by_one() -> None:
    claimed = having("independent", "random")
    tried: dict[str, set[Any]] = defaultdict(set)
    mixing = set[str]()
    for function, arguments in programs():
        for closed in traced(function, arguments(0)):
            values: list[Any] = []
            for i, eqn in enumerate(closed.eqns):
                name = eqn.primitive.name
                kind = tuple((str(v.aval.dtype), v.aval.ndim) for v in eqn.invars)
                if name not in claimed or not kind or kind in tried[name] or len(tried[name]) > 1:
                    continue
                values = values or [values_of(closed, arguments(s)) for s in range(OTHER + 1)]
                if i >= len(values[0]):
                    break
                tried[name].add(kind)
                if not is_independent(eqn, [of_seed[i] for of_seed in values]):
                    mixing.add(name)
    assert sorted(mixing) == []
    missing = sorted(claimed.difference(tried) - NOT_TRIED)
    assert not missing, missing
