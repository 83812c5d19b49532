"""Recurrent networks over packed sequences: lengths are tensors or lists, batches differ."""

import torch
from torch import nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
)

from tests.programs import outcomes_of, program


class Encoder(nn.Module):
    """A recurrent layer between packing and padding."""

    def __init__(self, kind, *, is_batch_first=True, is_sorted=False, fills_length=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layer = kind(4, 6, batch_first=is_batch_first, **options)
        self.is_batch_first, self.is_sorted, self.fills_length = is_batch_first, is_sorted, fills_length

    def forward(self, x, lengths, hidden=None):
        packed = pack_padded_sequence(x, lengths, self.is_batch_first, self.is_sorted)
        out, hidden = self.layer(packed, hidden)
        total = x.size(1 if self.is_batch_first else 0) if self.fills_length else None
        out, lengths = pad_packed_sequence(out, self.is_batch_first, -1.0, total)
        return out * 2, lengths, hidden


def batch(*lengths, extra=0):
    return lambda: (torch.randn(len(lengths), max(lengths) + extra, 4, requires_grad=True), torch.tensor(lengths))


_LSTM = Encoder(nn.LSTM, bidirectional=True)


@program(batch(3, 5, 2), batch(7, 1, 4, 4), batch(2, 2))
def lstm_of_batches(x, lengths):
    """A bidirectional LSTM over batches of other sizes and lengths."""
    return _LSTM(x, lengths)


_GRU = Encoder(nn.GRU, num_layers=2, is_sorted=True, is_batch_first=False, fills_length=True)


@program(
    lambda: (torch.randn(6, 3, 4, requires_grad=True), torch.tensor([5, 4, 1])),
    lambda: (torch.randn(8, 2, 4, requires_grad=True), torch.tensor([8, 4])),
)
def gru_of_sorted_batches(x, lengths):
    """A stacked GRU, time first, that pads to the length of its input and gets a first state."""
    return _GRU(x, lengths, torch.ones(2, x.size(1), 6))


_DROPS = Encoder(nn.RNN, num_layers=2, dropout=0.5)


@program(batch(3, 5, 2), batch(7, 1, 4, 4, extra=2))
def dropout_between_layers(x, lengths):
    """Dropout between packed layers draws eager's numbers."""
    return _DROPS(x, lengths)


@program(batch(3, 5, 2), batch(7, 1, 4, 4), tolerance=0.02)
def under_autocast(x, lengths):
    """Packed layers and their results under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return _LSTM(x, lengths)


@program(batch(3, 5, 2), batch(7, 1, 4, 4))
def in_inference_mode(x, lengths):
    """Packed layers in inference mode."""
    with torch.inference_mode():
        out, lengths, hidden = _LSTM(x, lengths)
        return out.clone(), lengths.clone(), hidden[0].clone()


@program(
    lambda: (torch.randn(3, 5, 4), [5, 4, 2]),
    lambda: (torch.randn(3, 6, 4), [6, 2, 2]),
    lambda: (torch.randn(2, 6, 4), (6, 2)),
)
def lists_of_lengths(x, lengths):
    """Lengths as numbers of a list or a tuple."""
    return _LSTM(x, lengths)


_LAYER = nn.LSTM(4, 6)


@program(
    lambda: ([torch.randn(n, 4, requires_grad=True) for n in (3, 2, 5)],),
    lambda: ([torch.randn(n, 4, requires_grad=True) for n in (2, 6, 6)],),
)
def pack_and_unpack_lists(sequences):
    """Sequences of a list are packed, and unpacked into a list."""
    packed = pack_sequence(sequences, enforce_sorted=False)
    out, _ = _LAYER(packed)
    return unpack_sequence(PackedSequence(out.data.sin(), *out[1:])), packed


@program(
    lambda: (pack_sequence([torch.ones(3, 4), torch.ones(2, 4)]),),
    lambda: (pack_sequence([torch.ones(5, 4), torch.ones(2, 4), torch.ones(1, 4)]),),
)
def packed_argument(packed):
    """A packed sequence that was packed outside."""
    out, last = _LAYER(packed)
    return out, last, pad_packed_sequence(out)[0].sum()


@program(
    lambda: (pack_sequence([torch.ones(3, 4), torch.ones(2, 4)]), torch.ones(1, 2, 6)),
    lambda: (pack_sequence([torch.ones(n, 4) for n in (5, 2, 1)]), torch.ones(1, 3, 6)),
    lambda: (pack_sequence([torch.ones(n, 4) for n in (5, 2)]), torch.ones(1, 3, 6)),
)
def packed_argument_and_state(packed, hidden):
    """A packed sequence and a first state from outside, also one of a wrong size."""
    return outcomes_of(lambda: _LAYER(packed, (hidden, hidden.sin())))


@program(batch(3, 5, 2))
def batch_sizes_written(x, lengths):
    """Batch sizes that the user changes are read again, also through ``data``."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    first = int(packed.batch_sizes[0])
    packed.batch_sizes[0] = 7
    second = int(packed.batch_sizes[0])
    packed.batch_sizes.data[0] = 9
    return first, second, int(packed.batch_sizes[0])


@program(lambda: (torch.ones(3, 5, 4),))
def wrong_lengths(x):
    """Lengths that eager rejects raise its errors."""
    return outcomes_of(
        lambda: pack_padded_sequence(x, torch.tensor([1, 0, 2]), True, False).data.sum(),
        lambda: pack_padded_sequence(x, torch.tensor([1, 3, 2]), True, True).data.sum(),
        lambda: pack_padded_sequence(x, torch.tensor([1, 7, 2]), True, False).data.sum(),
        lambda: pack_padded_sequence(x, torch.tensor([1, 2]), True, False).data.sum(),
    )
