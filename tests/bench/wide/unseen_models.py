"""Models added after the others had been tuned: nothing was tuned for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.bench.wide.attention_models import Block, rotate

F = torch.nn.functional


class CrossBlock(nn.Module):
    """A transformer block that also attends to a memory."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.norm = Block(width, heads), nn.LayerNorm(width)
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        q = self.q(self.norm(x)).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(memory).view(batch, memory.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        return self.own(x + self.out(mixed), mask)


class Transcriber(nn.Module):
    """A Whisper-like model: an encoder of a spectrogram, and a decoder that attends to it."""

    def __init__(self, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(80, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        self.register_buffer("places", torch.randn(1500, width) * 0.02)
        self.encoder = nn.ModuleList(Block(width, 8) for _ in range(layers))
        self.words, self.decoder = (
            nn.Embedding(20000, width),
            nn.ModuleList(CrossBlock(width, 8) for _ in range(layers)),
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, sound: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.second(F.gelu(self.first(sound)))).transpose(1, 2)
        h = h + self.places[: h.shape[1]].to(h.dtype)
        for block in self.encoder:
            h = block(h)
        n = tokens.shape[1]
        x, mask = self.words(tokens), torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()
        for block in self.decoder:
            x = block(x, h, mask)
        return self.norm(x) @ self.words.weight.T.to(x.dtype)


class Selective(nn.Module):
    """A Mamba-like model: causal depthwise convolutions and a selective scan by chunks."""

    def __init__(self, width: int = 256, layers: int = 3, heads: int = 8, state: int = 32, chunk: int = 64) -> None:
        super().__init__()
        self.heads, self.state, self.chunk = heads, state, chunk
        self.into = nn.ModuleList(nn.Linear(width, 4 * width + 2 * state + heads) for _ in range(layers))
        inner = 2 * width + 2 * state
        self.local = nn.ModuleList(nn.Conv1d(inner, inner, 4, padding=3, groups=inner) for _ in range(layers))
        self.decay = nn.ParameterList(torch.rand(heads) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def scan(self, x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        batch, length, heads, size = x.shape
        parts = length // self.chunk
        x, b, c = (v.reshape(batch, parts, self.chunk, *v.shape[2:]) for v in (x, b, c))
        total = step.reshape(batch, parts, self.chunk, heads).permute(0, 3, 1, 2).cumsum(-1)
        reach = (total[..., :, None] - total[..., None, :]).exp().tril()
        inside = torch.einsum("bpin,bpjn,bhpij,bpjhs->bpihs", c, b, reach, x)
        carried = torch.einsum("bpjn,bhpj,bpjhs->bphsn", b, (total[..., -1:] - total).exp(), x)
        last, states = torch.zeros_like(carried[:, 0]), []
        for n in range(parts):
            states.append(last)
            last = last * total[:, :, n, -1].exp()[..., None, None] + carried[:, n]
        across = torch.einsum("bpin,bphsn,bhpi->bpihs", c, torch.stack(states, 1), total.exp())
        return (inside + across).reshape(batch, length, heads * size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for into, local, decay, norm, out in zip(self.into, self.local, self.decay, self.norms, self.out, strict=True):
            width = 2 * x.shape[2]
            gate, inner, step = into(norm(x)).split((width, width + 2 * self.state, self.heads), -1)
            inner = F.silu(local(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            value, b, c = inner.split((width, self.state, self.state), -1)
            step = F.softplus(step.float())
            value = value.unflatten(-1, (self.heads, -1)).float() * step[..., None]
            mixed = self.scan(value, -step * decay.exp(), b.float(), c.float())
            x = x + out(mixed.to(x.dtype) * F.silu(gate))
        return x


class GraphAttention(nn.Module):
    """Attention over the neighbors of each node, normalized by scattered maxima and sums."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.value = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.ends = nn.ParameterList(torch.randn(2, heads, width // heads) * 0.1 for _ in range(layers))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        start, end = edges
        for value, ends in zip(self.value, self.ends, strict=True):
            v = value(x).unflatten(-1, (self.heads, -1))
            score = F.leaky_relu((v * ends[0]).sum(-1)[start] + (v * ends[1]).sum(-1)[end], 0.2).float()
            place = end[:, None].expand_as(score)
            low = torch.full((len(x), self.heads), -1e9, device=x.device)
            weight = (score - low.scatter_reduce(0, place, score.detach(), "amax")[end]).exp()
            total = torch.zeros(len(x), self.heads, device=x.device).index_add(0, end, weight)
            shared = (weight / total[end])[..., None] * v[start].float()
            x = x + F.elu(torch.zeros_like(v, dtype=torch.float32).index_add(0, end, shared)).flatten(1).to(x.dtype)
        return x


class Latent(nn.Module):
    """Blocks of latent diffusion: convolutions that know the time, attention to a text."""

    def __init__(self, widths: tuple[int, ...] = (160, 320), text: int = 512) -> None:
        super().__init__()
        self.stem, self.time = nn.Conv2d(4, widths[0], 3, 1, 1), nn.Linear(128, 512)
        given = widths[0]
        self.norms, self.convs, self.times = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.sides, self.attends, self.texts = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for made in widths:
            self.norms.append(nn.ModuleList((nn.GroupNorm(32, given), nn.GroupNorm(32, made))))
            self.convs.append(nn.ModuleList((nn.Conv2d(given, made, 3, 1, 1), nn.Conv2d(made, made, 3, 1, 1))))
            self.times.append(nn.Linear(512, made))
            self.sides.append(nn.Conv2d(given, made, 1))
            self.attends.append(CrossBlock(made, 5))
            self.texts.append(nn.Linear(text, made))
            given = made
        self.head = nn.Conv2d(given, 4, 3, 1, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        angle = time[:, None] * torch.exp(-torch.arange(64, device=x.device) / 8)
        told = self.time(torch.cat((angle.sin(), angle.cos()), -1).to(text.dtype))
        h = self.stem(x)
        for n, (norms, convs) in enumerate(zip(self.norms, self.convs, strict=True)):
            side = self.sides[n](h)
            h = convs[0](F.silu(norms[0](h))) + self.times[n](F.silu(told))[:, :, None, None]
            h = side + convs[1](F.silu(norms[1](h)))
            batch, width, high, wide = h.shape
            seen = self.attends[n](h.flatten(2).transpose(1, 2), self.texts[n](text))
            h = h + seen.transpose(1, 2).reshape(batch, width, high, wide)
            h = F.avg_pool2d(h, 2) if n == 0 else F.interpolate(h, scale_factor=2.0, mode="nearest")
        return self.head(h)


class Tagger(nn.Module):
    """Two GRU layers in both directions, and the likelihood of a chain of tags."""

    def __init__(self, width: int = 256, tags: int = 20) -> None:
        super().__init__()
        self.words = nn.Embedding(10000, width)
        self.cells = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.head, self.moves = nn.Linear(2 * width, tags), nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.cells(self.words(tokens))[0])
        total = scores[:, 0]
        for n in range(1, tokens.shape[1]):
            total = torch.logsumexp(total[:, :, None] + self.moves, 1) + scores[:, n]
        path = scores.gather(2, wanted[..., None])[..., 0].sum(1) + self.moves[wanted[:, :-1], wanted[:, 1:]].sum(1)
        return torch.logsumexp(total, -1) - path


class SwitchBlock(nn.Module):
    """Experts with a capacity: tokens go to places of their expert and back."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(width, experts, bias=False), nn.LayerNorm(width)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        experts, room = self.up.shape[0], 2 * len(x) // self.up.shape[0]
        weight, chosen = torch.softmax(self.gate(x).float(), -1).max(-1)
        order = F.one_hot(chosen, experts).cumsum(0).gather(1, chosen[:, None])[:, 0] - 1
        fits = order < room
        place = torch.where(fits, chosen * room + order, experts * room)
        rows = x.new_zeros(experts * room + 1, x.shape[1]).index_copy(0, place, x)[:-1]
        made = torch.bmm(F.gelu(torch.bmm(rows.view(experts, room, -1), self.up.to(x.dtype))), self.down.to(x.dtype))
        back = torch.cat((made.flatten(0, 1), made.new_zeros(1, x.shape[1])))[place]
        return self.norm(x + back * (weight * fits)[:, None].to(x.dtype))


class StaticDecoder(nn.Module):
    """A decoder that writes keys and values into a cache of fixed length, in place.

    ``apart``: keys and values are two buffers, as in transformers, not one.
    """

    def __init__(self, layers: int = 6, width: int = 1024, heads: int = 16, *, apart: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.head = nn.Embedding(32000, width), nn.Linear(width, 32000, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.gated = nn.ModuleList(nn.Linear(width, 6 * width, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(3 * width, width, bias=False) for _ in range(layers))
        for n in range(layers):
            for name in ("k", "v") if apart else ("past",):
                sizes = (4, heads, 1024, width // heads)
                self.register_buffer(f"{name}{n}", torch.zeros(sizes if apart else (2, *sizes)))

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        batch, length, width = x.shape
        room, half = 1024, width // self.heads // 2
        angle = places[:, None].float() / 10000 ** (torch.arange(half, device=x.device) / half)
        mask = torch.arange(room, device=x.device)[None] <= places[:, None]
        for n, (qkv, out, gated, down) in enumerate(zip(self.qkv, self.out, self.gated, self.down, strict=True)):
            parts = qkv(self.norms[2 * n](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            past = (
                getattr(self, f"past{n}")
                if hasattr(self, "past0")
                else (getattr(self, f"k{n}"), getattr(self, f"v{n}"))
            )
            past[0].index_copy_(2, places, rotate(parts[1], angle))
            past[1].index_copy_(2, places, parts[2])
            mixed = F.scaled_dot_product_attention(rotate(parts[0], angle), past[0], past[1], mask)
            x = x + out(mixed.transpose(1, 2).reshape(batch, length, width))
            gate, up = gated(self.norms[2 * n + 1](x)).chunk(2, -1)
            x = x + down(F.silu(gate) * up)
        return self.head(self.norms[-1](x[:, -1]))


class Mixer(nn.Module):
    """Two perceptrons a block: one across patches, one across channels."""

    def __init__(self, width: int = 384, patches: int = 196, layers: int = 6) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 16, 16), nn.Linear(width, 1000)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.across = nn.ModuleList(self.mlp(patches, 2 * width) for _ in range(layers))
        self.along = nn.ModuleList(self.mlp(width, 4 * width) for _ in range(layers))

    def mlp(self, width: int, hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        for n, (across, along) in enumerate(zip(self.across, self.along, strict=True)):
            x = x + across(self.norms[2 * n](x).transpose(1, 2)).transpose(1, 2)
            x = x + along(self.norms[2 * n + 1](x))
        return self.head(x.mean(1))


class Radiance(nn.Module):
    """A NeRF-like field: sines of positions, a perceptron, colors summed along rays."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(63, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.last = nn.Linear(width, 4)

    def forward(self, starts: torch.Tensor, ways: torch.Tensor) -> torch.Tensor:
        depth = torch.linspace(2, 6, 64, device=starts.device)
        places = starts[:, None] + ways[:, None] * depth[:, None]
        waves = places[..., None] * 2.0 ** torch.arange(10, device=starts.device)
        found = self.last(self.body(torch.cat((places, waves.sin().flatten(-2), waves.cos().flatten(-2)), -1)))
        opaque = 1 - torch.exp(-F.relu(found[..., 3]) * 4 / 64)
        left = torch.cumprod(torch.cat((torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10), -1), -1)[:, :-1]
        return ((opaque * left)[..., None] * found[..., :3].sigmoid()).sum(1)


class Segmenter(nn.Module):
    """Dilated convolutions, pooling of several sizes, and a loss at each pixel."""

    def __init__(self, width: int = 96, classes: int = 21) -> None:
        super().__init__()
        self.stem = nn.Sequential(self.part(3, width, 7, 4), self.part(width, 2 * width, 3, 2))
        self.rates = nn.ModuleList(self.part(2 * width, width, 3, 1, rate) for rate in (1, 4, 8))
        self.pools = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for _ in (1, 2, 4))
        self.head = nn.Conv2d(6 * width, classes, 1)

    def part(self, given: int, made: int, kernel: int, stride: int, rate: int = 1) -> nn.Module:
        conv = nn.Conv2d(given, made, kernel, stride, kernel // 2 * rate, rate, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(made), nn.ReLU())

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        parts = [rate(h) for rate in self.rates]
        for size, pool in zip((1, 2, 4), self.pools, strict=True):
            parts.append(F.interpolate(pool(F.adaptive_avg_pool2d(h, size)), h.shape[2:], mode="bilinear"))
        scores = F.interpolate(self.head(torch.cat(parts, 1)), x.shape[2:], mode="bilinear", align_corners=False)
        return F.cross_entropy(scores.float(), wanted, ignore_index=0)


class TwoTowers(nn.Module):
    """Users and items as sums of embeddings, told apart within the batch."""

    def __init__(self, rows: int = 50000, width: int = 128, fields: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(2))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(fields * width, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, width))
            for _ in range(2)
        )
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        u, i = (
            F.normalize(tower(table(v).flatten(1)), dim=-1)
            for tower, table, v in zip(self.towers, self.tables, (users, items), strict=True)
        )
        scores = u @ i.T * self.scale.exp()
        wanted = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2


class Conformer(nn.Module):
    """Half perceptrons around attention and a gated depthwise convolution with batch norm."""

    def __init__(self, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, 4, dropout=0.1) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.open = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.depth = nn.ModuleList(nn.Conv1d(width, width, 31, padding=15, groups=width) for _ in range(layers))
        self.batch = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.close = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, device=x.device).masked_fill(hidden, -1e4)[:, None, None]
        for n, block in enumerate(self.blocks):
            x = block(x, mask.to(torch.bfloat16) if torch.is_autocast_enabled() else mask)
            h = F.glu(self.open[n](self.norms[n](x).transpose(1, 2)), 1).masked_fill(hidden[:, None], 0.0)
            x = x + self.close[n](F.silu(self.batch[n](self.depth[n](h)))).transpose(1, 2)
        return x


class Pretrained(nn.Module):
    """A small model of transformers with random weights."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        sizes: dict[str, Any] = {
            "T5": {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "dropout_rate": 0.0},
            "GPT2": {"n_layer": 6, "n_embd": 512, "n_head": 8, "n_positions": 512},
            "Qwen3": {
                "hidden_size": 768,
                "intermediate_size": 2048,
                "num_hidden_layers": 6,
                "num_attention_heads": 12,
                "num_key_value_heads": 4,
                "head_dim": 64,
                "vocab_size": 32000,
            },
        }[kind]
        head = {"T5": "T5ForConditionalGeneration", "GPT2": "GPT2LMHeadModel", "Qwen3": "Qwen3ForCausalLM"}[kind]
        config = getattr(transformers, f"{kind}Config")(**sizes, use_cache=False)
        self.body: Any = getattr(transformers, head)(config)

    def forward(self, tokens: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        named = {"decoder_input_ids": targets[0]} if targets else {}
        return self.body(input_ids=tokens, **named).logits
