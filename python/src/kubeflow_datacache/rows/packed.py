# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""PackedBatch: one rank's packs of one step, and their tensors for kernels of attention within sequences."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kind

from kubeflow_datacache.errors import ColumnError, DataCacheError
from kubeflow_datacache.extras import needs
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.pack import Pack
from kubeflow_datacache.order.packed import RankStep, Spans
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.block import StepBlock

IGNORED: Final = -100  # label of a token that is not trained
Int64 = npt.NDArray[np.int64]


class Packed:
    """Sequences of tokens, one after the other: one pack, or all packs of a rank's step. A view of the batch's memory.

    rows: the rows of the sequences, of which each sequence is the whole or a piece. valid: False for a pack without
    rows, which a rank gets where a step has fewer packs than ranks; its tensors have only padding. Tensors have a first
    dimension of 1, as models want. pad: whether they always have the full number of tokens; what is left is one more
    sequence, of the token pad_id and with the label -100.
    """

    def __init__(self, rows: pa.RecordBatch, pieces: Spans, pack: Pack, *, full: int) -> None:
        self.rows, self._pieces, self._pack, self._full = rows, pieces, pack, full
        self.valid = len(pieces.lengths) > 0

    @property
    def lengths(self) -> Int64:
        """The number of tokens of each sequence."""
        return self._pieces.lengths

    def numpy(self, column: str) -> npt.NDArray[Any]:
        """The values of a column of lists, one for each token, without padding. Raises ColumnError for other columns,
        and for a row with fewer or more values than tokens."""
        array = self._lists(column)
        bounds = array.offsets.to_numpy()
        begins, ends = bounds[:-1], bounds[1:]
        tokens = array if column == self._pack.column else self._lists(self._pack.column)
        whole = np.diff(tokens.offsets.to_numpy())
        if tokens is not array and (wrong := np.flatnonzero(ends - begins != whole)).size:
            at = int(wrong[0])
            raise ColumnError(
                f"column {column!r}: row {at} of the pack has {ends[at] - begins[at]} values, and {whole[at]} tokens in"
                f" {self._pack.column!r}: want one for each token"
            )
        values, lengths = array.values, self.lengths
        if values.null_count:
            raise ColumnError(f"column {column!r} has nulls within its lists: fill them when the table is written")
        if (begins[1:] == ends[:-1]).all() and (lengths == whole).all():
            first, last = (int(begins[0]), int(ends[-1])) if len(begins) else (0, 0)
            return values.slice(first, last - first).to_numpy(zero_copy_only=False)
        first = begins + self._pieces.starts
        before = np.cumsum(lengths) - lengths
        return values.to_numpy(zero_copy_only=False)[np.arange(int(lengths.sum())) + np.repeat(first - before, lengths)]

    def hf(self, *, pad: bool = False, pad_id: int = 0) -> dict[str, Any]:
        """Arguments of models of transformers: the tensors of its DataCollatorWithFlattening. Requires torch.

        input_ids, position_ids, labels (not shifted, the first of each sequence -100), seq_idx, cu_seq_lens_q and _k,
        max_length_q and _k.
        """
        flat = self._flat(pad, pad_id)
        labels = flat.labels.copy()
        labels[flat.ends[:-1]] = IGNORED
        torch = _torch("hf")
        ends = torch.from_numpy(flat.ends.astype(np.int32))
        return {
            "input_ids": torch.from_numpy(flat.tokens)[None],
            "labels": torch.from_numpy(labels)[None],
            "position_ids": torch.from_numpy(flat.positions)[None],
            "seq_idx": torch.from_numpy(flat.sequences.astype(np.int32))[None],
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": flat.longest,
            "max_length_k": flat.longest,
        }

    def varlen(self, *, pad: bool = False, pad_id: int = 0) -> dict[str, Any]:
        """Arguments of kernels such as flash_attn_varlen_func. Requires torch.

        tokens, labels (the next token of the sequence; -100 for its last), positions, cu_seqlens, max_seqlen.
        """
        flat, torch = self._flat(pad, pad_id), _torch("varlen")
        return {
            "tokens": torch.from_numpy(flat.tokens)[None],
            "labels": torch.from_numpy(flat.shifted)[None],
            "positions": torch.from_numpy(flat.positions)[None],
            "cu_seqlens": torch.from_numpy(flat.ends.astype(np.int32)),
            "max_seqlen": flat.longest,
        }

    def megatron(self, *, pad_id: int = 0) -> dict[str, Any]:
        """A batch of Megatron-Core, always of the full number of tokens. Requires torch.

        tokens, labels (the next token; -100 for the last of a sequence and for padding), loss_mask, position_ids;
        cu_seqlens without and cu_seqlens_padded with the padding to `multiple` tokens, and max_seqlen, for
        PackedSeqParams.
        """
        flat, torch = self._flat(True, pad_id), _torch("megatron")
        own = np.concatenate([self.lengths, flat.sizes[len(self.lengths) :]])
        return {
            "tokens": torch.from_numpy(flat.tokens)[None],
            "labels": torch.from_numpy(flat.shifted)[None],
            "loss_mask": torch.from_numpy((flat.shifted != IGNORED).astype(np.float32))[None],
            "position_ids": torch.from_numpy(flat.positions)[None],
            "cu_seqlens": torch.from_numpy(np.cumsum([0, *own]).astype(np.int32)),
            "cu_seqlens_padded": torch.from_numpy(flat.ends.astype(np.int32)),
            "max_seqlen": flat.longest,
        }

    def _lists(self, name: str) -> Any:
        if name not in self.rows.schema.names:
            raise ColumnError(f"column {name!r} is not read: add it to columns; there are {self.rows.schema.names}")
        array = self.rows.column(name)
        if not kind.is_list(array.type) and not kind.is_large_list(array.type):
            raise ColumnError(f"column {name!r} is {array.type}: want lists with a value for each token")
        return array

    def _flat(self, pad: bool, pad_id: int) -> _Flat:
        tokens = self.numpy(self._pack.column).astype(np.int64)
        labels = tokens if self._pack.labels is None else self.numpy(self._pack.labels).astype(np.int64)
        multiple = self._pack.multiple
        sizes = -(-self.lengths // multiple) * multiple
        rest = self._full - int(sizes.sum()) if pad else 0 if self.valid else multiple
        return _Flat(tokens, labels, self.lengths, np.append(sizes, rest) if rest else sizes, pad_id)


class _Flat:
    """Sequences of `lengths` tokens, padded to `sizes`, of which a last one may have padding alone."""

    def __init__(self, tokens: Int64, labels: Int64, lengths: Int64, sizes: Int64, pad_id: int) -> None:
        self.sizes = sizes
        self.ends: Int64 = np.cumsum([0, *sizes], dtype=np.int64)
        self.longest = int(sizes.max())
        begins = np.repeat(self.ends[:-1], sizes)
        self.positions: Int64 = np.arange(int(self.ends[-1])) - begins
        self.sequences: npt.NDArray[Any] = np.repeat(np.arange(len(sizes)), sizes)
        real = np.zeros(len(sizes), np.int64)
        real[: len(lengths)] = lengths
        is_token = self.positions < np.repeat(real, sizes)
        self.tokens: Int64 = np.full(len(is_token), pad_id, np.int64)
        self.labels: Int64 = np.full(len(is_token), IGNORED, np.int64)
        self.tokens[is_token], self.labels[is_token] = tokens, labels

    @property
    def shifted(self) -> Int64:
        """For each token the label of the next one."""
        out = np.append(self.labels[1:], IGNORED)
        out[self.ends[1:] - 1] = IGNORED
        return out


class PackedBatch(Batch):
    """One rank's packs of one step; also a Batch of their rows, in the order of the packs.

    packs: one for each micro-batch, as many for every rank. A piece of a row counts as a row. weight: what to multiply
    the sum of the losses of this rank's tokens by: world size / tokens of the step over all ranks, without the first of
    each sequence, which is no label. The mean over ranks, which frameworks take of gradients, is then the mean over
    these tokens. With a column of labels it raises DataCacheError: a rank has not read which labels of the other ranks
    are -100.
    """

    __slots__ = ("_pack", "_packs", "_step")

    def __init__(
        self, origin: tuple[Epoch, Share], pack: Pack, own: RankStep, block: StepBlock, index: int, step: int
    ) -> None:
        super().__init__(origin, block, index, step)
        self._pack, self._step = pack, own
        self._packs: list[Packed] | None = None

    @property
    def packs(self) -> list[Packed]:
        """The packs, one for each micro-batch."""
        if self._packs is None:
            none, first, rows = Spans(*[np.empty(0, np.int64)] * 2), 0, self.arrow()
            self._packs = []
            for pack in self._step.packs:
                pieces = pack or none
                own = rows.slice(first, len(pieces.lengths))
                self._packs.append(Packed(own, pieces, self._pack, full=self._pack.tokens))
                first += own.num_rows
        return self._packs

    @property
    def planned(self) -> RankStep:
        """The step in the plan."""
        return self._step

    @property
    def tokens(self) -> int:
        """The tokens of the step over all ranks."""
        return self._step.tokens

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Boolean mask, shape (num_rows,): all True. See Packed.valid for packs without rows."""
        return np.ones(self.num_rows, np.bool_)

    def _own_weight(self) -> float:
        if self._pack.labels is not None:
            raise DataCacheError(
                "weight with Pack(labels=): only the ranks together know how many labels count: sum (labels != -100)"
                " over them, and multiply the losses by the number of ranks / that sum"
            )
        return self._origin[1].world / max(1, self._step.tokens - self._step.sequences)

    @property
    def _located(self) -> tuple[npt.NDArray[np.int16], Int64]:
        return self._origin[0].locate(self._step.rows)

    def hf(self, *, pad: bool = False, pad_id: int = 0) -> dict[str, Any]:
        """All packs as one; see Packed.hf."""
        return self._whole.hf(pad=pad, pad_id=pad_id)

    def varlen(self, *, pad: bool = False, pad_id: int = 0) -> dict[str, Any]:
        """All packs as one; see Packed.varlen."""
        return self._whole.varlen(pad=pad, pad_id=pad_id)

    def megatron(self, *, pad_id: int = 0) -> dict[str, Any]:
        """All packs as one; see Packed.megatron."""
        return self._whole.megatron(pad_id=pad_id)

    @property
    def _whole(self) -> Packed:
        return Packed(self.arrow(), self._step.spans, self._pack, full=len(self._step.packs) * self._pack.tokens)


def _torch(method: str) -> Any:
    with needs("torch", f"PackedBatch.{method}()"):
        import torch

        return torch
