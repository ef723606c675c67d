# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtures: the rows of several caches by weight, in one loader."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Unpack, overload

import pyarrow as pa

from kubeflow_datacache.arguments import check_int, check_list, length_of
from kubeflow_datacache.client import Closable
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.fetch.feed import Feed
from kubeflow_datacache.fetch.mix_feed import MixFeed
from kubeflow_datacache.fetch.take_feed import TakeFeed, TakeSource
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.options import LoaderOptions, explicit_signature
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.order.mix import Mix, Unit
from kubeflow_datacache.order.pack import Pack
from kubeflow_datacache.order.shares import Exact, Shares, Until, fraction
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.packing import PackLoader, PackOptions
from kubeflow_datacache.selection import Readable
from kubeflow_datacache.state import MixState
from kubeflow_datacache.stop import Stop

Parts = Mapping[str, tuple[Readable, float | Sequence[float]]]


class Mixture:
    """Several caches, mixed by weight. loader() reads it, and kubeflow_datacache.torch.StreamingDataset takes it as a
    cache.

    parts: {name: (cache, weight)}; mix() describes the parameters. The caches stay the caller's, who closes them.
    Connects on first use. Picklable, and safe for concurrent use.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        exact: Exact = "epoch",
        per: Unit = "row",
        until: Until = "first",
        phases: Sequence[int] = (),
    ) -> None:
        _check_parts(parts)
        self._caches = {name: cache for name, (cache, _) in parts.items()}
        self.endpoint = ", ".join(cache.endpoint for cache in self._caches.values())
        if not isinstance(until, str):
            until = check_int("until", until, 1, 1 << 62)
        each = check_list("phases", phases, "numbers of steps")
        steps = tuple(check_int(f"phases[{i}]", n, 1, 1 << 62) for i, n in enumerate(each))
        proportions = {name: _proportions(name, weight, len(steps) + 1) for name, (_, weight) in parts.items()}
        for phase in range(len(steps) + 1):
            if not any(own[phase] for own in proportions.values()):
                raise ValueError(f"weights of phase {phase} are all 0: want one above 0")
        self._shares = Shares(proportions=proportions, phases=steps, exact=exact, per=per, until=until)

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self._caches)})"

    @overload
    def loader(self, *, pack: Pack, **options: Unpack[PackOptions]) -> PackMixLoader: ...

    @overload
    def loader(self, *, pack: None = None, **options: Unpack[LoaderOptions]) -> MixLoader: ...

    @explicit_signature
    def loader(self, *, pack: Pack | None = None, **options: Any) -> MixLoader:
        """A loader of this rank's batches; LoaderOptions describes the parameters. With pack, a PackMixLoader, whose
        parameters are PackOptions."""
        return MixLoader(self, **options) if pack is None else PackMixLoader(self, pack, **options)

    @property
    def caches(self) -> Mapping[str, Readable]:
        """The caches by name of part."""
        return self._caches

    @property
    def shares(self) -> Shares:
        """The proportions of the parts."""
        return self._shares

    @property
    def dataset(self) -> Dataset:
        """All parts as one dataset, with the rows of all of them."""
        datasets = [cache.dataset for cache in self._caches.values()]
        prints = "\n".join(dataset.fingerprint for dataset in datasets)
        return Dataset(
            table_uuid=", ".join(dataset.table_uuid for dataset in datasets),
            snapshot=None,
            fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
            rows=sum(dataset.rows for dataset in datasets),
        )

    def schemas(self, columns: Sequence[str] | None) -> list[pa.Schema]:
        """The schema of batches of each part with these columns; None for all.

        They are equal, and a column that may have nulls in one part may have them in all. Where parts differ otherwise,
        raises ColumnError, or with per="batch" returns the parts' own schemas.
        """
        schemas = {
            name: cache.schema if columns is None else pa.schema([_field(cache.schema, column) for column in columns])
            for name, cache in self._caches.items()
        }
        try:
            return [_common(schemas)] * len(schemas)
        except ColumnError:
            if self._shares.per == "row":
                raise
            return list(schemas.values())

    def check_columns(self, columns: Sequence[str]) -> list[str]:
        """Returns the column names as a list. Raises ColumnError for a column that a part does not serve."""
        names = list[str]()
        for cache in self._caches.values():
            names = cache.check_columns(columns)
        return names

    def wait(self, *, progress: bool = False, early: bool = False) -> Mapping[str, Any]:
        """Waits until the caches of all parts are loaded; returns their statuses by name. See DataCache.wait."""
        return {name: cache.wait(progress=progress, early=early) for name, cache in self._caches.items()}

    def select(self, *, filter: str | None = None, split: Split | None = None) -> Mixture:
        """Raises ValueError: parts are selected one by one."""
        raise ValueError(
            f"filter = {filter!r}, split = {split!r} of a mixture: select the rows of each part, as"
            ' mix({"web": (web.select(filter="..."), 0.7), ...})'
        )

    def register(self, reader: Closable) -> None:
        """Registers a reader that closing any of the caches will close."""
        for cache in self._caches.values():
            cache.register(reader)


class MixLoader(Loader):
    """Iterates over this rank's batches of an epoch of a mixture; create it with mix() or Mixture.loader.

    Everything is as in Loader. Batch.source is the part of each row, and Batch.indices its index there. A part that
    does not answer is waited for. A state is accepted by a loader with the same parts and the same weights up to the
    saved position; later phases may differ, and be more.
    """

    @explicit_signature
    def __init__(self, mixture: Mixture, **options: Unpack[LoaderOptions]) -> None:
        self._mixture = mixture
        self._datasets = {name: cache.dataset for name, cache in mixture.caches.items()}
        for name, dataset in self._datasets.items():
            if not dataset.rows:
                raise ValueError(f"part {name!r} has no rows: leave it out, or see its filter and snapshot")
        super().__init__(mixture, **options)
        self._schemas = mixture.schemas(self._columns)

    @property
    def parts(self) -> list[str]:
        """The names of the parts, in the order of Batch.source."""
        return list(self._datasets)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The integer weights of each part by phase: of as many draws as the sum of a phase, exactly so many."""
        return {name: part.weights for name, part in zip(self._datasets, self._mix.parts, strict=True)}

    @property
    def _mix(self) -> Mix:
        assert isinstance(self._order, Mix)
        return self._order

    @functools.cached_property
    def _sources(self) -> list[TakeSource]:
        parts = zip(self._mixture.caches.values(), self._datasets.values(), strict=True)
        return [TakeSource(cache, self._columns, dataset, self._options["early"]) for cache, dataset in parts]

    def _order_of(self, own: Mapping[str, Any]) -> Mix:
        if own["order"] != 1:
            raise ValueError(
                f"order = {own['order']}: mixtures have order version 1 alone, as a rank's rows of a part are of all"
                " its ranges"
            )
        return self._mixture.shares.order(
            [dataset.rows for dataset in self._datasets.values()],
            seed=own["seed"],
            shuffle=own["shuffle"],
            clump=own["clump"],
            window=own["window"],
            global_batch=own["global_batch_size"],
            tail=own["tail"],
        )

    def _state(self) -> MixState:
        order = self._mix
        parts = zip(self._datasets.items(), order.parts, strict=True)
        return MixState(
            order_version=order.order,
            parts=[MixState.part(name, dataset, part.weights) for (name, dataset), part in parts],
            phases=list(order.phases),
            unit=order.unit,
            rows=order.rows,
            seed=int(order.seed),
            shuffle=order.shuffle,
            clump=order.clump,
            window=order.window,
            global_batch_size=order.global_batch,
            tail=order.tail,
            epoch=order.number,
            next_step=self.next_step,
        )

    def _request(self, share: Share) -> dict[str, Any]:
        order = self._mix
        return {
            **super()._request(share),
            "kind": "mix",
            "parts": [{"rows": part.rows, "weights": part.weights} for part in order.parts],
            "phases": order.phases,
            "unit": order.unit,
            "length": order.rows,
        }

    def _open_feed(self, request: Mapping[str, Any], prefetch_bytes: int, step: int, stop: Stop) -> MixFeed:
        datasets = list(self._datasets.values())
        quotas, by_number = _quotas(self._mix, prefetch_bytes), self._takes(stop)

        def open_part(part: int, first_key: int) -> Feed | TakeFeed:
            source, own = self._sources[part], {**request, "part": part}
            common: Any = {"prefetch_bytes": quotas[part], "stop": stop, "timer": self._timer, "first_key": first_key}
            if by_number:
                return TakeFeed(source, **common)
            return Feed.open(source.cache, own, datasets[part], start_step=step, **common)

        return MixFeed.open(open_part, self._mix, self._schemas)


class PackMixLoader(PackLoader, MixLoader):
    """Iterates over this rank's packs of an epoch of a mixture; create it with mix(pack=...) or Mixture.loader.

    Weights are of rows, as without packs: rows are drawn first, and packed in the order in which they were drawn.
    phases count rows.
    """

    def __init__(self, mixture: Mixture, pack: Pack, **options: Unpack[PackOptions]) -> None:
        shares = mixture.shares
        if shares.per == "batch":
            raise ValueError('per = "batch" with pack: packs have rows of all parts: give per="row"')
        if shares.exact == "step":
            raise ValueError('exact = "step" with pack: a step has a number of tokens, not of rows: give exact="epoch"')
        super().__init__(mixture, pack, **options)

    @property
    def _head(self) -> None:
        return None  # each part has a head of its own

    @property
    def _tables(self) -> Sequence[Readable]:
        return list(self._mixture.caches.values())

    def _rows_of(self, **options: Any) -> Loader:
        return MixLoader(self._mixture, **options)


@overload
def mix(
    parts: Parts,
    *,
    pack: Pack,
    exact: Exact = ...,
    per: Unit = ...,
    until: Until = ...,
    phases: Sequence[int] = ...,
    **options: Unpack[PackOptions],
) -> PackMixLoader: ...


@overload
def mix(
    parts: Parts,
    *,
    pack: None = None,
    exact: Exact = ...,
    per: Unit = ...,
    until: Until = ...,
    phases: Sequence[int] = ...,
    **options: Unpack[LoaderOptions],
) -> MixLoader: ...


@explicit_signature
def mix(
    parts: Parts,
    *,
    pack: Pack | None = None,
    exact: Exact = "epoch",
    per: Unit = "row",
    until: Until = "first",
    phases: Sequence[int] = (),
    **options: Any,
) -> MixLoader:
    """A loader of several caches by weight: exact, shuffled, resumable at any world size.

    parts: {name: (cache, weight)}; a Selection may take the place of a cache. Weights are numbers in any proportion,
    such as 0.7 and 0.3; with phases, one for each phase. exact: over what the numbers of rows of the parts are exact,
    after rounding by largest remainder: an "epoch" (or a phase), or every "step" over all ranks. per: whether each
    "row" is drawn by itself, or all rows of a "batch" over all ranks come from one part. until: when an epoch of the
    mixture ends: with the "first" part that has no rows left, when "all" parts have been read once, or after a number
    of rows, which with phases it must be. A part that is longer goes on in the next epoch where it was; a part that is
    shorter begins an epoch of its own, in another order. With tail="drop", "first" and "all" make an epoch of whole
    steps. phases: a curriculum: the number of steps, over all epochs, of each phase but the last, which does not end.

    The columns of all parts must have the same names and types, except with per="batch". The other parameters are those
    of LoaderOptions. Raises ValueError or ColumnError, naming the part.
    """
    mixture = Mixture(parts, exact=exact, per=per, until=until, phases=phases)
    return mixture.loader(**options) if pack is None else mixture.loader(pack=pack, **options)


def _field(schema: pa.Schema, column: str) -> pa.Field:
    """The field of a column, or of the lengths of one."""
    of = length_of(column)
    return schema.field(column) if of is None or column in schema.names else pa.field(column, pa.int32())


def _common(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The schema of all parts. Raises ColumnError, naming parts and column, if there is none."""
    (first, whole), *others = schemas.items()
    fields = [field.remove_metadata() for field in whole]
    for name, schema in others:
        if schema.names != whole.names:
            raise ColumnError(
                f"columns of {first!r} are {whole.names}, of {name!r} {schema.names}: name those that all parts"
                ' have with columns=, or give per="batch"'
            )
        for i, field in enumerate(schema):
            if field.type != fields[i].type:
                raise ColumnError(
                    f"column {field.name!r} is {fields[i].type} in {first!r} and {field.type} in {name!r}: want one"
                    ' type; leave the column out with columns=, or give per="batch"'
                )
            fields[i] = fields[i].with_nullable(fields[i].nullable or field.nullable)
    return pa.schema(fields)


def _check_parts(parts: Any) -> None:
    example = '{"web": (cache, 0.7), "books": (other, 0.3)}'
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts = {parts!r}: want a dict of caches and weights by name, as {example}")
    if not parts:
        raise ValueError(f"parts = {{}}: want at least one part, as {example}")
    for name, part in parts.items():
        if not isinstance(part, tuple | list) or len(part) != 2 or not isinstance(part[0], Readable):
            raise TypeError(f"parts[{name!r}] = {part!r}: want (cache, weight), as in {example}")


def _proportions(name: str, weight: float | Sequence[float], phases: int) -> tuple[Fraction, ...]:
    """The weights of a part as fractions, one for each phase."""
    weights: Sequence[object] = weight if isinstance(weight, list | tuple) else [weight] * phases
    if len(weights) != phases:
        raise ValueError(f"weights of {name!r}: {len(weights)}, want {phases}, one for each phase")
    own = tuple(fraction(name, each) for each in weights)
    if not any(own):
        raise ValueError(f"weight of {name!r} = 0: want more, or leave the part out")
    return own


def _quotas(order: Mix, prefetch_bytes: int) -> list[int]:
    """Divides the limit of rows read ahead among the parts, by their largest share in any phase."""
    totals = [sum(column) for column in zip(*(part.weights for part in order.parts), strict=True)]
    most = [max(w / total for w, total in zip(part.weights, totals, strict=True)) for part in order.parts]
    return [max(1, int(prefetch_bytes * share / sum(most))) for share in most]
