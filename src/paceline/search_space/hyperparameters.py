"""``hp``: the object passed to ``build``, with KerasTuner's methods.

The same class serves a trial (a sampler chooses), a fixed configuration (``values`` are given) and
a first look (defaults).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, Self

from paceline.errors import SpaceError, TrialRejected
from paceline.search_space import declaration, html
from paceline.search_space.declaration import Condition, HyperParameter
from paceline.search_space.distribution import Scalar, plain, same
from paceline.search_space.parameter import Parameter


class UnknownHyperParameterError(SpaceError, KeyError):
    """``hp.get`` of a name that was never declared; a KeyError as in KerasTuner."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class InactiveHyperParameterError(SpaceError):
    """``hp.get`` of an inactive hyperparameter; a ValueError as in KerasTuner."""


class HyperParameters(html.ShownValues):
    """The hyperparameters of one configuration: declared, chosen and looked up.

    A hyperparameter is unique by name and conditions. Within one configuration a name has one
    value: declared again, or under a second condition that also holds, it returns the value it has.

    Attributes:
        values: Plain name -> value of the active hyperparameters, and the given ones not declared
            yet. A value written here before the declaration is used by it.
        active_scopes, inactive_scopes: The conditions of each ``conditional_scope`` that was
            entered, also of one in which nothing was declared.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        chooser: Callable[[Parameter], Any] | None = None,
        trusting: bool = False,
    ) -> None:
        """Make an hp.

        Args:
            values: Plain name -> real value, used where the name is declared and active; names
                that are never declared are listed in ``unused``.
            chooser: Called once for each parameter that is active and not in ``values``, returns
                its real value; without it the default is used.
            trusting: Whether, as in KerasTuner, the first declaration of a name stands, and values
                are taken as they are given. Else other bounds or values are errors.
        """
        self.values: dict[str, Any] = dict(values or {})
        self.active_scopes: list[tuple[Condition, ...]] = []
        self.inactive_scopes: list[tuple[Condition, ...]] = []
        self._trusting = trusting
        self._given = dict(self.values)
        self._chooser = chooser
        self._name_scopes: list[str] = []
        self._conditions: list[Condition] = []
        self._declared: dict[tuple[str, tuple[Condition, ...]], HyperParameter] = {}
        # Plain name -> the declaration that gave the name its value; in the order met.
        self._holders: dict[str, HyperParameter] = {}
        self._parameters: dict[str, Parameter] = {}
        self._typed: set[str] = set()  # names of choices that are equal but for their types
        # Called whenever a hyperparameter has got its value; it may raise.
        self.on_value: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """As always; who is called when a value is chosen is of this object alone."""
        return {**vars(self), "on_value": None}

    # Declaring

    def Int(  # noqa: N802 - KerasTuner's name
        self,
        name: str,
        min_value: int,
        max_value: int,
        step: int | None = None,
        sampling: str | None = "linear",
        default: int | None = None,
        parent_name: str | None = None,
        parent_values: Any = None,
    ) -> Any:
        """Declare an integer.

        Args:
            name: Name, unique within its conditions.
            min_value: Lower bound, included.
            max_value: Upper bound, included where the step reaches it.
            step: Distance between values, 1 by default; with log sampling their ratio, or None.
            sampling: linear, log or reverse_log (dense near the upper bound).
            default: Value where nobody chooses; ``min_value`` when None.
            parent_name: Name of a hyperparameter on which this one depends.
            parent_values: Values of the parent under which this one is active.

        Returns:
            The value, an int; None while inactive.

        Raises:
            SpaceError: Impossible bounds or step, or bounds other than those of an earlier call.
        """
        of = min_value, max_value, step, sampling, default
        return self._new(declaration.integer, name, of, parent_name, parent_values)

    def Float(  # noqa: N802 - KerasTuner's name
        self,
        name: str,
        min_value: float,
        max_value: float,
        step: float | None = None,
        sampling: str | None = "linear",
        default: float | None = None,
        parent_name: str | None = None,
        parent_values: Any = None,
    ) -> Any:
        """Declare a number.

        Args:
            name: Name, unique within its conditions.
            min_value: Lower bound, included.
            max_value: Upper bound, included where the step reaches it.
            step: Distance between values, with log sampling their ratio; None for any value.
            sampling: linear, log or reverse_log (dense near the upper bound).
            default: Value where nobody chooses; ``min_value`` when None.
            parent_name: Name of a hyperparameter on which this one depends.
            parent_values: Values of the parent under which this one is active.

        Returns:
            The value, a float; None while inactive.

        Raises:
            SpaceError: Impossible bounds or step, or bounds other than those of an earlier call.
        """
        of = min_value, max_value, step, sampling, default
        return self._new(declaration.floating, name, of, parent_name, parent_values)

    def Choice(  # noqa: N802 - KerasTuner's name
        self,
        name: str,
        values: Iterable[Scalar | None],
        ordered: bool | None = None,
        default: Scalar | None = None,
        parent_name: str | None = None,
        parent_values: Any = None,
    ) -> Any:
        """Declare a choice among values.

        Args:
            name: Name, unique within its conditions.
            values: The choices: int, float, str, bool or None, also several of these. Each comes
                back with the type that it has here: 1, 1.0 and True are three choices.
            ordered: Whether they have an order; kept for KerasTuner's users, no sampler uses it.
            default: Value where nobody chooses; the first choice when None.
            parent_name: Name of a hyperparameter on which this one depends.
            parent_values: Values of the parent under which this one is active.

        Returns:
            One of ``values``; None while inactive.

        Raises:
            SpaceError: No choices, one of another type, a default that is none of them, or other
                choices than those of an earlier call.
        """
        declare = partial(declaration.choice, mixed=not self._trusting)
        return self._new(declare, name, (values, ordered, default), parent_name, parent_values)

    def Boolean(  # noqa: N802 - KerasTuner's name
        self,
        name: str,
        default: bool = False,
        parent_name: str | None = None,
        parent_values: Any = None,
    ) -> Any:
        """Declare a choice between False and True.

        Args:
            name: Name, unique within its conditions.
            default: Value where nobody chooses.
            parent_name: Name of a hyperparameter on which this one depends.
            parent_values: Values of the parent under which this one is active.

        Returns:
            The value, a bool; None while inactive.

        Raises:
            SpaceError: A default that is not a bool, or a name that is declared as something else.
        """
        return self._new(declaration.boolean, name, (default,), parent_name, parent_values)

    def Fixed(  # noqa: N802 - KerasTuner's name
        self, name: str, value: Scalar, parent_name: str | None = None, parent_values: Any = None
    ) -> Any:
        """Declare a value that is recorded and not searched.

        Args:
            name: Name, unique within its conditions.
            value: An int, float, str or bool.
            parent_name: Name of a hyperparameter on which this one depends.
            parent_values: Values of the parent under which this one is active.

        Returns:
            ``value``; None while inactive.

        Raises:
            SpaceError: A value of another type, or other than that of an earlier call.
        """
        return self._new(declaration.fixed, name, (value,), parent_name, parent_values)

    @contextlib.contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Prefix the names declared and looked up inside with ``name/``."""
        self._name_scopes.append(str(name))
        try:
            yield
        finally:
            self._name_scopes.pop()

    @contextlib.contextmanager
    def conditional_scope(self, parent_name: str, parent_values: Any) -> Iterator[None]:
        """Make what is declared inside active only while a parent has one of some values.

        The code inside runs in any case; while inactive, a hyperparameter is None.

        Args:
            parent_name: Name of a hyperparameter declared before, under any condition.
            parent_values: A value of the parent, or a list of values.

        Raises:
            SpaceError: The parent is not declared, or ``parent_values`` holds nothing usable.
        """
        parent = self._full(parent_name)
        if not any(name == parent for name, _ in self._declared):
            raise SpaceError(
                f'hp.conditional_scope("{parent}"): a hyperparameter of this name is not defined. '
                "Declare it before the scope."
            )
        self._conditions.append(Condition.of(parent, parent_values))
        # Of the last condition alone, as in KerasTuner: the outer ones are scopes themselves.
        holds = self._holds(self._conditions[-1:])
        (self.active_scopes if holds else self.inactive_scopes).append(tuple(self._conditions))
        try:
            yield
        finally:
            self._conditions.pop()

    def reject(self, why: str) -> NoReturn:
        """Raise ``TrialRejected``: the trial is not trained; people read ``why``, the reason."""
        raise TrialRejected(str(why).strip() or "no reason was given")

    # Looking up

    def get(self, name: str) -> Any:
        """Return the value of the active hyperparameter ``name``; the name scope applies.

        Raises:
            SpaceError: It was not declared (also a KeyError), or is inactive (also a ValueError).
        """
        if (full := self._full(name)) in self.values:
            return self.values[full]
        if any(declared == full for declared, _ in self._declared):
            raise InactiveHyperParameterError(
                f'hp.get("{full}"): it is currently inactive, because its conditions do not hold. '
                f'First check `"{name}" in hp`.'
            )
        known = ", ".join(self.values) or "none"
        raise UnknownHyperParameterError(
            f'hp.get("{full}"): this hyperparameter does not exist. Active ones: {known}.'
        )

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        return self._full(name) in self.values

    def is_active(self, hyperparameter: str | HyperParameter) -> bool:
        """Return whether the conditions of a hyperparameter hold.

        Args:
            hyperparameter: One of ``space``, or a full name: active when any of that name is.
        """
        if isinstance(hyperparameter, HyperParameter):
            return self._holds(hyperparameter.conditions)
        name = str(hyperparameter)
        return any(self._holds(conditions) for known, conditions in self._declared if known == name)

    @property
    def space(self) -> list[HyperParameter]:
        """What has been declared, inactive ones included, in order."""
        return list(self._declared.values())

    @property
    def hparams(self) -> dict[str, Any]:
        """Plain name -> real value of what is active, Fixed included, in the order met."""
        return {name: self.values[name] for name in self._holders if name in self.values}

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Storage name -> parameter of what is active, Fixed excluded, in the order met."""
        return dict(self._parameters)

    @property
    def unused(self) -> list[str]:
        """Names given in ``values`` that have not been declared."""
        declared = {name for name, _ in self._declared}
        return [name for name in self._given if name not in declared]

    def to_storage(self) -> dict[str, Any]:
        """Return storage name -> stored value of ``parameters``.

        Raises:
            SpaceError: A value that its parameter cannot have; a trusting hp leaves it out.
        """
        stored = {}
        for stored_as, parameter in self._parameters.items():
            try:
                stored[stored_as] = parameter.to_storage(self.values[parameter.name])
            except SpaceError:
                if not self._trusting:
                    raise
        return stored

    # Copies and configs, as KerasTuner's users know them

    def get_config(self) -> dict[str, Any]:
        """Return what was declared and the values, in KerasTuner's form."""
        space = [{"class_name": hp.kind, "config": hp.get_config()} for hp in self.space]
        return {"space": space, "values": dict(self.values)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, trusting: bool = False) -> Self:
        """Return the hp that a config of ``get_config``, ours or KerasTuner's, describes.

        Args:
            config: The config.
            trusting: As for ``HyperParameters``.

        Raises:
            SpaceError: A declaration that cannot be, or a value outside it.
        """
        hps = cls(config["values"], trusting=trusting)
        for entry in config["space"]:
            kind, own = entry["class_name"], entry["config"]
            hp = hps._kept(declaration.of_config(kind, own, mixed=not trusting))
            hps._typed |= {hp.name} if hp.typed else set()
            hps._declared[hp.name, hp.conditions] = hp
            if hp.name in hps.values and hps._holds(hp.conditions):
                hps._value(hp)
        given = {name: hps.values[name] for name in config["values"] if name in hps.values}
        hps.values = {**given, **hps.values}  # in the order given
        return hps

    def copy(self) -> Self:
        """Return an hp with the same declarations and values, of which nothing more is chosen."""
        return type(self).from_config(self.get_config(), trusting=self._trusting)

    def merge(
        self, hps: HyperParameters | Iterable[HyperParameter], overwrite: bool = True
    ) -> None:
        """Take over declarations; active ones get their default where they have no value.

        Args:
            hps: Another hp, or hyperparameters of a ``space``.
            overwrite: Whether one with the same name and conditions replaces ours, its default our
                value.
        """
        for hp in hps.space if isinstance(hps, HyperParameters) else hps:
            key = (hp.name, hp.conditions)
            if overwrite:
                self._declared.pop(key, None)
                if self._holds(hp.conditions):
                    self._given.pop(hp.name, None)
                    self._release(hp.name)
            if key not in self._declared:
                self._declare(hp)

    def ensure_active_values(self) -> None:
        """Give every active hyperparameter a value and take it from every inactive one."""
        for hp in sorted(self.space, key=self.is_active):  # first make room
            self._declare(hp)

    # Inside

    def _full(self, name: Any) -> str:
        return "/".join([*self._name_scopes, str(name)])

    def _holds(self, conditions: Iterable[Condition]) -> bool:
        values, typed = self.values, self._typed
        return all(each.is_active(values, typed=each.name in typed) for each in conditions)

    def _new(
        self,
        declare: Callable[..., HyperParameter],
        name: str,
        arguments: tuple[Any, ...],
        parent_name: str | None,
        parent_values: Any,
    ) -> Any:
        """Declare by a function of ``declaration``, perhaps in a scope of its own."""
        with contextlib.ExitStack() as stack:
            if parent_name:
                stack.enter_context(self.conditional_scope(parent_name, parent_values))
            return self._declare(declare(self._full(name), *arguments, tuple(self._conditions)))

    def _kept(self, hp: HyperParameter) -> HyperParameter:
        """The object that ``space`` has for a declaration."""
        return hp

    def _declare(self, hp: HyperParameter) -> Any:
        """Note a declaration and return its value, None while inactive."""
        key = (hp.name, hp.conditions)
        known = self._declared.get(key)
        if known is None:
            if any(condition.name == hp.name for condition in hp.conditions):
                raise SpaceError(
                    f'hp.{hp.kind}("{hp.name}"): it cannot have the same name as its own parent. '
                    "Rename one of them."
                )
            known = self._declared[key] = self._kept(hp)
            self._typed |= {hp.name} if hp.typed else set()
        elif known.bounds != hp.bounds and not self._trusting:
            raise SpaceError(
                f'hp.{hp.kind}("{hp.name}"): declared twice under the same condition, with '
                f"{known.bounds} first and {hp.bounds} now. Rename one of them."
            )
        if self._holds(known.conditions):
            return self._value(known)
        holder = self._holders.get(hp.name)
        if holder is None and hp.name in self.values:
            # Not for this condition, perhaps for another one of that name.
            self._given[hp.name] = self.values.pop(hp.name)
        elif holder is not None and not self._holds(holder.conditions):
            self._release(hp.name)
        return None

    def _value(self, hp: HyperParameter) -> Any:
        """Return the value of an active hyperparameter; choose one if it has none."""
        name, holder = hp.name, self._holders.get(hp.name)
        if holder is hp and name in self.values:
            return self.values[name]
        parameter = None if hp.kind == "Fixed" else Parameter.of(hp)
        if name in self.values:
            value = self._accept(hp, parameter, self.values[name])
        elif name in self._given:
            value = self._accept(hp, parameter, self._given[name])
        elif parameter is not None and self._chooser is not None:
            value = parameter.check(self._chooser(parameter))
        else:
            value = hp.default
        if holder is None or not self._holds(holder.conditions):
            self._release(name)
            self._holders[name] = hp
            if parameter is not None:
                self._parameters[parameter.storage_name] = parameter
        self.values[name] = value
        if self.on_value is not None:
            self.on_value()
        return value

    def _accept(self, hp: HyperParameter, parameter: Parameter | None, value: Any) -> Any:
        """Return a value that was not chosen for this hyperparameter, if it can have it."""
        if hp.choices is None and same(plain(value), hp.default):
            return hp.default  # which may lie off the grid, as in KerasTuner
        if self._trusting:
            return self._trusted(hp, parameter, value)
        try:
            if parameter is not None:
                return parameter.check(value)
            raise SpaceError(
                f'hp.Fixed("{hp.name}"): got the value {value!r}, but {hp.default!r} is declared. '
                "Leave the value out, or change the Fixed in build."
            )
        except SpaceError as error:
            holder = self._holders.get(hp.name)
            if holder is None or holder is hp:
                raise
            raise SpaceError(
                f'hp.{hp.kind}("{hp.name}"): {hp.bounds} must contain {value!r}, the value of '
                f"{holder.storage_name} in this configuration. Rename one of them."
            ) from error

    def _trusted(self, hp: HyperParameter, parameter: Parameter | None, value: Any) -> Any:
        """Return a value as its parameter writes it, or as it is where that cannot have it."""
        if parameter is None or self._holders.get(hp.name) not in (None, hp):
            return value
        try:
            return parameter.check(value)
        except SpaceError:
            return value

    def _release(self, name: str) -> None:
        """Forget the value of a name and what it was chosen for."""
        self.values.pop(name, None)
        self._holders.pop(name, None)
        for stored_as in [key for key, p in self._parameters.items() if p.name == name]:
            del self._parameters[stored_as]
