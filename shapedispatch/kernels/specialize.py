"""The call of a kernel to its key.

The law is that of `keys`: *if two calls have equal keys, a build that is right for one is right for the other.* A
kernel reads raw memory, so less can change it than a function; what can, stands in the key:

- of a tensor: that it is exactly a ``torch.Tensor`` or ``nn.Parameter``, its dtype, its device, and whether its address
  is a multiple of 16; sizes, strides and the rest only where a grid, a heuristic or a pruning function reads them.
  conj and neg bits change nothing: Triton itself passes the memory as it is;
- of a plain integer: Triton's own classes, which are 1, multiples of 16 and the others, each as 32, 64 or unsigned 64
  bits wide; as far as ``do_not_specialize`` leaves them. So a step counter or a seed is no new key at each call;
- of a float, a bool and None: the type; of a tuple: all this for each item;
- of a dim, and of what is read by value: the value with its type;
- of a constexpr and of an option such as ``num_warps``: the value with its type, so that 1, True and 1.0 differ (in
  Triton's own memory of keys they do not), floats by ``hex``;
- the device that the kernel will run on, and plain globals that the grid or a heuristic reads.

What a heuristic or a grid reads is found out by running it (`observed_reads`), so it may become known late. The key's
first part says what else is in it: keys of one layout are equal to none of another.

What is none of these is a bypass: Triton's own launch, with the reason. The key is computed by a function generated
for the kernel's signature, because this is the part of a hit that grows with the number of arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import FunctionType
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn import Parameter as TensorParameter

from ..keys.instances import Placeholder, attributes_of
from ..keys.key import Bypass, Key, describe

__all__ = ["ABSENT", "Keyed", "Parameter", "Specializer", "parameters_of"]


ABSENT = Placeholder("left to a config or a heuristic")
MISSING = Placeholder("missing")
WIDTHS = ((range(-(2**31), 2**31), 0), (range(-(2**63), 2**63), 4), (range(2**64), 8))
"""Integers of 32, 64 and unsigned 64 bits, and what each width adds to an integer's class."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; ``specialize`` and ``align`` say what ``do_not_specialize`` leaves of Triton's classes."""

    name: str
    constexpr: bool
    specialize: bool = True
    align: bool = True
    default: Any = inspect.Parameter.empty
    keyword_only: bool = False


def parameters_of(kernel: Any) -> tuple[Parameter, ...]:
    """The parameters of a ``triton.jit`` function or of an interpreted one; Bypass where a kind is not known here."""
    signature = inspect.signature(kernel.fn)
    facts = getattr(kernel, "params", None) or [None] * len(signature.parameters)
    return tuple(_parameter(p, fact) for p, fact in zip(signature.parameters.values(), facts, strict=True))


def _parameter(parameter: inspect.Parameter, fact: Any) -> Parameter:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise Bypass(f"the kernel takes any number of arguments as {parameter.name!r}")
    return Parameter(
        name=parameter.name,
        constexpr="constexpr" in str(parameter.annotation) if fact is None else bool(fact.is_constexpr),
        specialize=not getattr(fact, "do_not_specialize", False),
        align=not getattr(fact, "do_not_specialize_on_alignment", False),
        default=parameter.default,
        keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
    )


Keyed: TypeAlias = tuple[Key, tuple[Any, ...], tuple[Any, ...], dict[str, Any]]
"""A call: its key; its values as a launch takes them (addresses for tensors); its arguments as the caller gave them.

The two hold one item a parameter, `ABSENT` for what the call leaves to a config. Last, the other keywords of the call.
A plain tuple, because it is made on each hit.
"""

Bound: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The last two parts of a `Keyed`."""


# ------------------------------------------------------------------------------------------------- one argument's class


def _integer(value: int, specialize: bool, align: bool) -> int:
    """Triton's class of a plain integer as a number."""
    width = next((added for integers, added in WIDTHS if value in integers), None)
    if width is None:
        raise Bypass(f"the integer {value} does not fit 64 bits")
    if not specialize:
        return width
    return 1 if value == 1 else width + (2 if align and value % 16 == 0 else 3)


def _argument(value: Any, specialize: bool = True, align: bool = True) -> Hashable:
    """The class of an argument that is no tensor."""
    kind = type(value)
    if value is MISSING:
        raise Bypass("an argument is missing")
    if kind is int:
        return (int, _integer(value, specialize, align))
    if kind is bool or kind is float or value is None:
        return (kind,)
    if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        return (kind, *[_item(item) for item in value])
    if _is_constant(kind):
        return _constant(value)
    raise Bypass(f"an argument of type {kind.__name__}, which only Triton's own launch takes")


def _item(value: Any) -> Hashable:
    """An item of a tuple: Triton applies no ``do_not_specialize`` inside one."""
    if isinstance(value, Tensor):
        if type(value) is not Tensor and type(value) is not TensorParameter:
            raise Bypass(f"a tensor of type {type(value).__name__} in a tuple")
        return (Tensor, value.dtype, value.get_device(), value.data_ptr() % 16 == 0)
    return _argument(value)


def _constant(value: Any) -> Hashable:
    """A constexpr or an option, by value and type."""
    kind = type(value)
    if kind is int or value is ABSENT:
        return value  # type: ignore[no-any-return]  # every other constant is a tuple, so an int is never taken for one
    if value is MISSING:
        raise Bypass("an argument is missing")
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return (kind, *[_constant(item) for item in value])
    if _is_constant(kind):
        return (kind, _constant(value.value)) if kind.__name__ == "constexpr" else (kind, value)
    is_ordinary = not is_dataclass(value) and attributes_of(value) is not None
    if kind in (list, dict, set, FunctionType) or isinstance(value, Tensor) or is_ordinary:
        raise Bypass(f"a constexpr of type {kind.__name__}, which is no constant")
    return describe(value)


def _is_constant(kind: type) -> bool:
    """Triton's own constants: a jitted function (hashed by its source), a ``tl.dtype``, a ``tl.constexpr``."""
    home = kind.__module__
    if home.startswith(("triton.runtime", "triton.experimental")):
        return any(base.__name__ == "JITCallable" for base in kind.__mro__)
    return home == "triton.language.core" and kind.__name__ in ("dtype", "constexpr")


# ------------------------------------------------------------------------------------------------------- the generator

# Every name that is not the kernel's begins with `@`, which `_made` replaces by a prefix that no parameter has.
_TENSOR = """\
    if type({x}) is @Tensor or type({x}) is @Parameter:
        @k{i} = {x}.dtype
        @v{i} = {x}.data_ptr(){align}{observed}
        if {x}.get_device() != @here: @far += ({i}, {x}.get_device())"""
_INTEGER = """\
    elif type({x}) is int and -2147483648 <= {x} <= 2147483647:
        @v{i} = {x}
        @k{i} = {integer}{none}"""
_OTHER = """\
    else:
        @v{i} = {x}
        @k{i} = {other}{none}"""
_CONSTANT = """\
    @v{i} = {x}
    @k{i} = {x} if type({x}) is int else @constant({x})"""
_SUPPLIED = """\
    if {x} is not @ABSENT: raise @Bypass("'{x}' is given by the call and by a config or a heuristic")
    @v{i}, @k{i} = {x}, None"""
_FACETS = {
    "shape": "{x}.shape",
    "stride": "{x}.stride()",
    "offset": "{x}.storage_offset()",
    "requires_grad": "{x}.requires_grad",
}


@dataclass(frozen=True)
class Specializer:
    """The key of one kernel's calls.

    ``on_this_device`` gives the current device. ``supplied`` are the parameters that configs or heuristics fill in.
    ``dims`` are keyed by value, and so is each facet in ``observed`` (name to ``value``, ``shape``, ``stride``,
    ``offset``, ``requires_grad`` or ``address % n``), each reader in ``global_readers`` and, with ``form``, how the
    call passes its arguments.

    ``of(*args, **kwargs)`` is a `Keyed`. It raises Bypass, TypeError where the call does not bind, and what a tensor
    without memory raises when asked for its address, which is what Triton raises. ``bind(*args, **kwargs)`` is the last
    two parts of it and raises TypeError alone.
    """

    parameters: tuple[Parameter, ...]
    on_this_device: Callable[[], int]
    supplied: Collection[str] = ()
    dims: Collection[str] = ()
    observed: Mapping[str, Collection[str]] = field(default_factory=dict)
    global_readers: tuple[Callable[[], Any], ...] = ()
    form: bool = False
    labels: tuple[str, ...] = field(init=False)
    of: Callable[..., Keyed] = field(init=False)
    bind: Callable[..., Bound] = field(init=False)
    _bound: Callable[..., Keyed] = field(init=False)

    def __post_init__(self) -> None:
        parts = self._parts()
        object.__setattr__(self, "labels", tuple(label for label, _ in parts))
        bound = self._generate("".join(f"{code}, " for _, code in parts))
        noting_form = lambda *args, **kwargs: bound((len(args), *kwargs), *args, **kwargs)  # noqa: E731 - one line
        object.__setattr__(self, "_bound", bound)
        object.__setattr__(self, "of", noting_form if self.form else bound)
        object.__setattr__(self, "bind", self._made("@bind", [], [], ""))

    def key_of_bound(self, form: tuple[Hashable, ...], raw: tuple[Any, ...], options: Mapping[str, Any]) -> Keyed:
        """The key of a bound call; ``form`` is (number of positional arguments, *names of keywords) of the call."""
        by_position = [p for p in self.parameters if not p.keyword_only]
        rest = dict(zip([p.name for p in self.parameters if p.keyword_only], raw[len(by_position) :], strict=True))
        return self._bound(*([form] if self.form else []), *raw[: len(by_position)], **rest, **options)

    def by_value(self, name: str) -> bool:
        """Whether an argument's value, not its class, is in the key."""
        return name in self.dims or "value" in self.observed.get(name, ())

    def class_of(self, key: Key, dynamic: Collection[str]) -> Key:
        """The key without ``dynamic`` dims and without what else is there by value only because something read it."""
        left_out = {*dynamic, *[name for name in self.observed if name not in self.dims and self.by_value(name)]}
        kept = [
            part
            for label, part in zip(self.labels, key, strict=True)
            if label != "layout and device" and label not in left_out and not label.endswith(" read")
        ]
        state: Any = key[0]
        return (state[1], *kept)  # the device, without the layout

    def differing(self, key: Key, other: Key) -> tuple[str, ...]:
        """The names of the parts in which two keys differ."""
        if len(key) != len(other):
            return ("what is read",)
        return tuple(label for label, a, b in zip(self.labels, key, other, strict=True) if a != b)

    def _layout(self) -> str:
        """What is in the key beside each argument's class, the same in every process."""
        read = [
            f"{name}: {', '.join(sorted(observed))}" for name, observed in sorted(self.observed.items()) if observed
        ]
        return "; ".join([f"by value: {', '.join(self.dims)}", *read, *(["the form of the call"] if self.form else [])])

    def read_of(self, name: str) -> list[str]:
        """What is in the key of a tensor that is given for a parameter, beside its class."""
        return sorted(set(self.observed.get(name, ())) - {"value"})

    def far(self, key: Key) -> dict[int, int]:
        """The places of tensors on other devices than the kernel's, and which."""
        far: Any = key[self.labels.index("devices")]
        return dict(zip(far[::2], far[1::2], strict=True))

    def _parts(self) -> list[tuple[str, str]]:
        """Each part of the key: what a person calls it, and the code that computes it."""
        read = [(i, p.name, ", ".join(self.read_of(p.name))) for i, p in enumerate(self.parameters)]
        return [
            ("layout and device", f"({self._layout()!r}, @here)"),
            ("alignment", "@off"),
            ("devices", "@far"),
            *[(name, f"@k{i}") for i, name, _ in read],
            *[(f"{name}.{facets} read", f"@t{i}") for i, name, facets in read if facets],
            *[(f"global {i}", f"@constant(@outer[{i}]())") for i in range(len(self.global_readers))],
            ("options", "@option_key(@options) if @options else None"),
            *([("form", "@form")] if self.form else []),
        ]

    def _generate(self, key: str) -> Callable[..., Keyed]:
        """For a kernel ``(x, B)`` with ``B`` from a config and a grid that reads ``x.shape``::

        def _bound(x, B=_ABSENT, **_options):
            _here, _off, _far = _device(), 0, ()
            if type(x) is _Tensor or type(x) is _Parameter:
                _k0 = x.dtype
                _v0 = x.data_ptr()
                if _v0 & 15: _off += 1
                _t0 = (x.shape, )
                if x.get_device() != _here: _far += (0, x.get_device())
            elif ...  # an integer, by its class or by value; what is neither
            if B is not _ABSENT: raise _Bypass("'B' is given by the call and by a config or a heuristic")
            _v1, _k1 = B, None
            return (("by value: ; x: shape", _here), _off, _far, _k0, ...), (_v0, _v1, ), (x, B, ), _options
        """
        values = "".join(f"@v{i}, " for i in range(len(self.parameters)))
        classified = [self._classify(i, parameter) for i, parameter in enumerate(self.parameters)]
        lines = ["    @here, @off, @far = @device(), 0, ()", *classified]
        return self._made("@bound", ["@form"] if self.form else [], lines, f"({key}), ({values}), ")

    def _made(self, made: str, first: Sequence[str], lines: Sequence[str], results: str) -> Callable[..., Any]:
        """The function ``made``, which binds a call, runs ``lines`` and returns ``results``, then a `Bound`."""
        names = [parameter.name for parameter in self.parameters]
        takes = ", ".join([*first, *_signature(self.parameters, self.supplied), "**@options"])
        raw = "".join(f"{name}, " for name in names)
        source = "\n".join([f"def {made}({takes}):", *lines, f"    return {results}({raw}), @options"])
        prefix = "_"
        while any(name.startswith(prefix) for name in names):
            prefix += "_"
        scope = {name.replace("@", prefix): value for name, value in self._scope().items()}
        exec(source.replace("@", prefix), scope)
        return scope[made.replace("@", prefix)]  # type: ignore[no-any-return]  # the function that the line above made

    def _classify(self, i: int, parameter: Parameter) -> str:
        x = parameter.name
        if x in self.supplied:
            return _SUPPLIED.format(x=x, i=i)
        if parameter.constexpr:
            return _CONSTANT.format(x=x, i=i)
        integer, other = (x, f"@constant({x})") if self.by_value(x) else _class_code(parameter)
        codes = [_FACETS.get(facet) or facet.replace("address", "@v{i}") for facet in self.read_of(x)]
        observed = "".join(f"{code.format(x=x, i=i)}, " for code in codes)
        return "\n".join([_TENSOR, _INTEGER, _OTHER]).format(
            x=x,
            i=i,
            integer=integer,
            other=other,
            align=f"\n        if @v{i} & 15: @off += {1 << i}" if parameter.specialize and parameter.align else "",
            observed=f"\n        @t{i} = ({observed})" if observed else "",
            none=f"\n        @t{i} = None" if observed else "",
        )

    def _scope(self) -> dict[str, Any]:
        return {
            "@Tensor": Tensor,
            "@Parameter": TensorParameter,
            "@Bypass": Bypass,
            "@ABSENT": ABSENT,
            "@MISSING": MISSING,
            "@device": self.on_this_device,
            "@outer": self.global_readers,
            "@constant": _constant,
            "@argument": _argument,
            "@option_key": _option_key,
            **{f"@default_{p.name}": p.default for p in self.parameters},
        }


def _option_key(options: Mapping[str, Any]) -> Hashable:
    return tuple(sorted((name, _constant(value)) for name, value in options.items()))


def _class_code(parameter: Parameter) -> tuple[str, str]:
    """As expressions: `_integer` of what fits 32 bits, and `_argument` of what else is no tensor."""
    x = parameter.name
    aligned = f"2 if not {x} & 15 else " if parameter.align else ""
    integer = f"1 if {x} == 1 else {aligned}3" if parameter.specialize else "0"
    return integer, f"@argument({x}, {parameter.specialize}, {parameter.align})"


def _signature(parameters: tuple[Parameter, ...], supplied: Collection[str]) -> list[str]:
    """The kernel's own signature, with a default for whatever stands behind a parameter that has one."""
    texts: list[str] = []
    default = ""
    for parameter in parameters:
        if parameter.keyword_only and "*" not in texts:
            texts.append("*")
        default = "@MISSING" if default else ""
        if parameter.name in supplied:
            default = "@ABSENT"
        elif parameter.default is not inspect.Parameter.empty:
            default = f"@default_{parameter.name}"
        texts.append(f"{parameter.name}={default}" if default else parameter.name)
    return texts
