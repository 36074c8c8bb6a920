"""Fingerprints: what has to be the same for a saved run to go on.

A fingerprint is of contents, never of names or addresses: of programs with the constants at every
depth, of arrays with their bytes, and of Python functions with their code, their defaults, what
they close over, and the globals they use. Other objects count as what `pickle` would store of them.
Installed packages count as their version.
"""

import copyreg
import dis
import hashlib
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache, cached_property, partial, singledispatchmethod
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jax_revolve._compat.jaxprs import is_literal
from jax_revolve._compat.values import is_traced
from jax_revolve.host.arrays import on_host

_OF_JAX = ("jax", "jaxlib", "jax_revolve")
_CONTEXT = ("compute_type", "threefry_partitionable", "xla_metadata", "cur_abstract_mesh")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_ARRAYS = (np.ndarray, np.memmap)
_COMPILED = (jax.stages.Compiled, jax.stages.Lowered, jax.stages.Traced)
_SETTINGS = (bool, int, float, complex, str, bytes, tuple)
_ERROR = {"msgs", "on_error", "stack"}
"""The arguments of what `equinox.error_if` calls. The stack is lines of the program that called it,
and random numbers."""
_NOISE = re.compile(r"(?: at )?0x[0-9a-f]+|\x1b\[[0-9;]*m")
"""Addresses of objects, and colors."""


class Contents:
    """Digests of values. What cannot be known is refused, unless a `version` stands for it."""

    def __init__(self, version: object = None) -> None:
        self._has_version = version is not None
        self._known: dict[int, tuple[Any, str]] = {}
        self._names: list[str] = []

    def of(self, name: str, *values: Any) -> str:
        """A digest of values, which errors call by this name."""
        self._names = [name]
        return _hash(*map(self._of, values))

    def _of(self, value: Any, name: str = "") -> str:
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = value, "itself"  # where a value refers to itself
        self._names.append(name)
        found = _hash(type(value).__qualname__, *self._parts(value))
        self._names.pop()
        self._known[id(value)] = value, found
        return found

    def _parts(self, value: Any) -> Iterable[Hashable]:
        if type(value) in _PLAIN or isinstance(value, np.dtype):
            return [repr(value)]
        if hasattr(value, "eqns"):
            return [program(value, self._of, results_only=True)]
        if is_traced(value):
            return [repr(jax.typeof(value))]
        if isinstance(value, np.generic | jax.Array) or type(value) in _ARRAYS:
            if value.dtype == object:
                return [value.shape, *map(self._of, np.ravel(value))]
            return [*_type(value), digest_of_array(value)]
        if isinstance(value, np.ndarray):  # what a class adds is not pickled
            return [*self._pickled(value), self._of(getattr(value, "__dict__", None))]
        # A user's class may add to its base class, so it is pickled.
        if type(value) in (tuple, list) or (isinstance(value, tuple | list) and _is_of_jax(value)):
            return map(self._of, value)
        if type(value) is dict:
            named = [(k, x) for k, x in value.items() if k != "stack" or not {*value} >= _ERROR]
            return [(self._of(key), self._of(x, f"{key!s}")) for key, x in named]
        if type(value) in (set, frozenset):
            return sorted(map(self._of, value))
        if isinstance(value, ModuleType):
            own = vars(value).items() if _is_own(value) else ()
            parts = {name: x for name, x in own if not name.startswith("__")}
            return [value.__name__, _version_of(value.__name__), self._of(parts)]
        if isinstance(value, CodeType):
            consts = map(self._of, value.co_consts)
            return [value.co_code, value.co_names, value.co_varnames, value.co_flags, *consts]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, BuiltinFunctionType | MethodType):
            function = getattr(value, "__func__", None)
            name = value.__qualname__
            return [name, self._of(function), self._of(value.__self__, name)]
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, NamedSharding):
            return [repr(value), self._of(value.mesh)]
        if isinstance(value, Mesh):
            return [repr(value), *(d.id for d in value.devices.flat if not value.empty)]
        if isinstance(value, partial):
            return map(self._of, (value.func, value.args, value.keywords))
        if isinstance(value, _COMPILED):  # its text omits constants
            return self._unknown(TypeError("a compiled program cannot be pickled"), value)
        if _is_of_jax(value):
            return [_NOISE.sub("", repr(value)), *map(self._of, _held(value))]
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped) and _is_of_package(type(value).__module__):
            return [self._of(wrapped)]  # rather than what a cache holds
        return self._pickled(value)

    def _function(self, function: FunctionType) -> Iterable[Hashable]:
        name = function.__qualname__
        module = function.__globals__.get("__name__", "")  # `functools.wraps` changes others
        package = _top(module)
        if package in _OF_JAX:
            return [name, *map(self._of, _held(function))]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        used = [(of, cell.cell_contents) for of, cell in cells if _is_set(cell)]
        if module == "equinox._errors":
            used = [(of, x) for of, x in used if of != "stack"]
        used.append(("its defaults", (function.__defaults__, function.__kwdefaults__)))
        used.append(("its attributes", vars(function)))
        if _is_installed(function.__code__.co_filename):
            parts = [name, package, _version_of(package)]
        else:
            parts = [self._of(function.__code__)]
            used += _globals(function.__code__, function.__globals__)
        return [*parts, *((of, self._of(value, f"{name}, {of}")) for of, value in used)]

    def _class(self, value: type) -> Iterable[Hashable]:
        parts = [value.__module__, value.__qualname__, _version_of(value.__module__)]
        if _is_of_package(value.__module__):
            return parts
        found = [(name, self._of(_unwrapped(x), name)) for name, x in _attributes(value)]
        return [*parts, *found, *map(self._of, (type(value), *value.__bases__))]

    def _pickled(self, value: Any) -> Iterable[Hashable]:
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except Exception as error:  # a class may refuse with any, such as NotImplementedError
            return self._unknown(error, value)
        if isinstance(reduced, str):
            return [type(value).__module__, reduced]
        return [self._of(list(x) if isinstance(x, Iterator) else x) for x in reduced]

    def _unknown(self, error: Exception, value: Any) -> Iterable[Hashable]:
        if self._has_version:
            return ["what the version stands for"]
        where = " of ".join(filter(None, reversed(self._names)))
        raise ValueError(
            f"version must not be None here, but a str or an int: whether {where}, an object "
            f"of type {type(value).__module__}.{type(value).__qualname__}, is the same in two "
            "calls of host_scan with one directory cannot be known, because it cannot be "
            "pickled. Pass a version, and another one whenever it changes."
        ) from error


def program(jaxpr: Any, part: Callable[[Any], Hashable], *, results_only: bool = False) -> Hashable:
    """A jaxpr, open or closed, with its variables as numbers and everything else as `part` says;
    perhaps without equations that have no results, such as `jax.debug.callback`."""
    numbers: dict[Any, int] = {}
    inner = getattr(jaxpr, "jaxpr", jaxpr)

    def use(atom: Any) -> Hashable:
        return (part(atom.aval), part(atom.val)) if is_literal(atom) else numbers[atom]

    def define(variables: Any) -> Hashable:
        return tuple((numbers.setdefault(v, len(numbers)), part(v.aval)) for v in variables)

    return (
        define([*inner.constvars, *inner.invars]),
        tuple(map(part, getattr(jaxpr, "consts", ()))),
        tuple(
            (
                part(eqn.primitive),
                tuple(map(use, eqn.invars)),
                tuple((name, part(value)) for name, value in sorted(eqn.params.items())),
                tuple(part(getattr(eqn.ctx, name, None)) for name in _CONTEXT),
                define(eqn.outvars),
            )
            for eqn in inner.eqns
            if eqn.outvars or not results_only
        ),
        tuple(map(use, inner.outvars)),
    )


def digest_of_array(value: Any) -> str:
    """Of an array's data. A memory-mapped array is not read: it counts as its file, with the time
    at which that changed, and the place in it. Copy on write does not change the file."""
    if isinstance(value, np.memmap) and value.filename is not None and value.mode != "c":
        return _hash(*_place(value))
    found = hashlib.sha256()
    for data in on_host([value]):
        content: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        found.update(content)
    return found.hexdigest()


def of_operands(values: Iterable[Any]) -> str:
    """Of types, data and places; `None` stands for itself."""
    return _hash(*(x if x is None else (_type(x), digest_of_array(x)) for x in values))


def of_platform(processes: int) -> str:
    """What the bits of a result depend on otherwise."""
    devices = tuple((d.id, d.platform, d.device_kind) for d in jax.devices())
    return _hash(jax.__version__, sys.version_info[:2], devices, processes)


def _hash(*values: Hashable) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _type(value: Any) -> tuple[Hashable, ...]:
    """The type of an array and, if it is on several devices, what is where."""
    places = ()
    if isinstance(value, jax.Array) and len(value.sharding.device_set) > 1:
        found = value.sharding.devices_indices_map(value.shape).items()
        places = tuple((device.id, repr(index)) for device, index in found)
    return str(value.dtype), value.shape, bool(getattr(value, "weak_type", False)), places


def _place(value: Any) -> tuple[Hashable, ...]:
    root: Any = value
    while isinstance(root.base, np.ndarray):
        root = root.base
    path = Path(value.filename)
    status = path.stat()
    at = root.offset + value.ctypes.data - root.ctypes.data
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino, at, value.strides


def _held(value: Any) -> list[Any]:
    """What an object or a function of JAX has from its user: functions, settings such as the axes
    of `jax.vmap`, and what is bound to their arguments. JAX keeps caches in lists and dicts."""
    if isinstance(value, FunctionType):
        cells = (cell.cell_contents for cell in value.__closure__ or () if _is_set(cell))
        found = [*cells, *(value.__defaults__ or ())]
        return [x for x in found if _is_callable(x) or isinstance(x, _SETTINGS)]
    if hasattr(value, "call_wrapped"):
        return [value.f, [x for part in value.transforms for x in part if _is_callable(x)]] + [
            x.val for part in value.transforms for x in jax.tree.leaves(part) if hasattr(x, "val")
        ]
    if not _is_callable(value):
        return []
    if hasattr(value, "__wrapped__") and not isinstance(value, jax.custom_jvp | jax.custom_vjp):
        return [value.__wrapped__]
    kinds: Any = type(value).__mro__
    names = [name for kind in kinds for name in getattr(kind, "__slots__", ())]
    names = [name for name in names if name != "__weakref__"]  # an error in Python 3.11.2
    held = [getattr(value, name, None) for name in (*names, *getattr(value, "__dict__", ()))]
    if isinstance(value, jnp.ufunc):
        held += [x for part in held if isinstance(part, dict) for x in part.values()]
    return list(filter(_is_callable, held))


def _is_callable(value: Any) -> bool:
    is_function = callable(value) or hasattr(value, "call_wrapped")
    return is_function and not isinstance(value, type | ReferenceType)


def _is_set(cell: Any) -> bool:
    return cell != type(cell)()


def _globals(code: CodeType, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The globals that a function uses, those in the user's modules included, by their names."""
    found: dict[str, Any] = {}
    at: Any = None
    name = ""
    instructions = [x for x in dis.get_instructions(code) if x.opname != "EXTENDED_ARG"]
    for number, instruction in enumerate(instructions):
        operation, argument = instruction.opname, instruction.argval
        is_attribute = operation in ("LOAD_ATTR", "LOAD_METHOD") and _is_own(at)
        if is_attribute and hasattr(at, argument):
            at, name = getattr(at, argument), f"{name}.{argument}"
        else:
            if _is_own(at):  # all of it may be used
                found[name] = at
            at = None
            if operation in ("LOAD_GLOBAL", "LOAD_NAME") and argument in known:
                at, name = known[argument], argument
            elif operation == "IMPORT_NAME":
                at, name = _imported(argument, instructions[number - 2].argval, known), argument
            else:
                continue
        if not _is_own(at):
            found[name] = at
    yield from found.items()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner, known)


def _imported(name: str, level: int, known: dict[str, Any]) -> ModuleType | None:
    """The module that an import in a function finds, which is imported here: the function has not
    run when a run begins, and it has when it goes on. `None` if it cannot be imported, which the
    function may expect."""
    try:
        return import_module(resolve_name(f"{'.' * level}{name}", known.get("__package__")))
    except ImportError:
        return None


def _is_own(value: Any) -> bool:
    """Whether a value is a module of the user."""
    if not isinstance(value, ModuleType):
        return False
    file = getattr(value, "__file__", None) or next(iter(getattr(value, "__path__", ())), None)
    return file is not None and not _is_installed(file)


def _attributes(value: type) -> Iterator[tuple[str, Any]]:
    """What the user defines in a class."""
    for name, x in vars(value).items():
        is_special = name.startswith("__") and not callable(_unwrapped(x))
        if not is_special and name != "_abc_impl":
            yield name, x


def _unwrapped(attribute: Any) -> Any:
    """An attribute of a class as what can be pickled."""
    if isinstance(attribute, property):
        return attribute.fget, attribute.fset, attribute.fdel
    if isinstance(attribute, classmethod | staticmethod):
        return attribute.__func__
    if isinstance(attribute, singledispatchmethod):
        return attribute.func, dict(attribute.dispatcher.registry)
    return attribute.func if isinstance(attribute, cached_property) else attribute


def _is_of_jax(value: Any) -> bool:
    return _top(type(value).__module__) in _OF_JAX


def _is_of_package(module: str) -> bool:
    """Whether a module is installed, or built into Python."""
    modules = (sys.modules.get(name) for name in (module, _top(module)))
    files = filter(None, (getattr(each, "__file__", None) for each in modules))
    return module in sys.builtin_module_names or any(map(_is_installed, files))


def _top(module: str) -> str:
    """The package of a module."""
    return module.partition(".")[0]


def _version_of(module: str) -> str:
    return str(getattr(sys.modules.get(_top(module)), "__version__", ""))


@cache
def _roots() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()]
    return tuple(Path(path).resolve() for path in found)


@cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    return file.startswith("<frozen") or any(path.is_relative_to(root) for root in _roots())
