"""Attention that reads keys and values from the paged cache, through block tables.

Promises: nothing a request attends to is taken from the step's own tensors: keys and values are first written
to the cache and then gathered back from the request's blocks, so a wrong block table shows in the tokens.
Every token sees the tokens of its own request at its own position and before, and nothing else.

    cache of a layer    [2, num_blocks, block_size, kv_heads, head_dim]        0: keys, 1: values
    slot of a token     block_ids[position // block_size] * block_size + position % block_size

A step mixes prefill and decode. Requests with one token each form one batched group; longer ones are a group
of their own, cut to at most `MAX_QUERIES`, so that masks stay small. Groups are planned once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

#: Rows of queries that one request brings into one group: bounds the mask to this times the context.
MAX_QUERIES = 512
#: Tokens that one decode group gathers, padding included: bounds the copy of the cache.
MAX_GATHERED_TOKENS = 1 << 17


class Chunk(NamedTuple):
    """What one request computes in a step: `count` tokens from position `start` on."""

    block_ids: Sequence[int]
    start: int
    count: int


class Group(NamedTuple):
    """Requests that attend together."""

    first: int  # rows of the step: first .. last
    last: int
    requests: int
    queries: int  # of each request
    blocks: torch.Tensor  # [requests * blocks of the longest]
    length: int  # keys per request that are looked at
    mask: torch.Tensor | None  # additive, [requests, 1, repeats * queries or 1, length]


class AttentionPlan(NamedTuple):
    """Where the step's tokens are written, and who looks where. The same for every layer."""

    slots: torch.Tensor  # [T]
    groups: list[Group]


def make_plan(chunks: Sequence[Chunk], block_size: int, repeats: int, dtype: torch.dtype,
              device: str) -> AttentionPlan:
    """The chunks are in the order of the step's rows, those of one token first.

    `repeats` is the number of query heads per key-value head.
    """
    slots: list[int] = []
    for blocks, start, count in chunks:
        if count == 1:
            slots.append(blocks[start // block_size] * block_size + start % block_size)
        else:
            slots += [blocks[p // block_size] * block_size + p % block_size for p in range(start, start + count)]
    singles = next((i for i, chunk in enumerate(chunks) if chunk.count > 1), len(chunks))
    groups: list[Group] = []
    first = 0
    while first < singles:
        last = _fitting(chunks, first, singles)
        groups.append(_decode_group(chunks[first:last], first, block_size, dtype, device))
        first = last
    row = singles
    for blocks, start, count in chunks[singles:]:
        for offset in range(0, count, MAX_QUERIES):
            part = Chunk(blocks, start + offset, min(MAX_QUERIES, count - offset))
            groups.append(_prefill_group(part, row + offset, block_size, repeats, dtype, device))
        row += count
    return AttentionPlan(torch.tensor(slots, device=device), groups)


def _fitting(chunks: Sequence[Chunk], first: int, end: int) -> int:
    """-> the end of the longest run from `first` on that one decode group may gather."""
    longest = 0
    for last in range(first, end):
        longest = max(longest, chunks[last].start + 1)
        if last > first and longest * (last + 1 - first) > MAX_GATHERED_TOKENS:
            return last
    return end


def _decode_group(chunks: Sequence[Chunk], first: int, block_size: int, dtype: torch.dtype, device: str) -> Group:
    lengths = [chunk.start + 1 for chunk in chunks]
    width = -(-max(lengths) // block_size)
    # Padding repeats block 0: what it holds is finite and masked.
    tables = [[*chunk.block_ids[:width], *[0] * (width - len(chunk.block_ids))] for chunk in chunks]
    blocks = torch.tensor(tables, device=device).view(-1)
    longest = max(lengths)
    mask = None
    if min(lengths) < longest:
        hidden = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))[:, None, None]
    return Group(first, first + len(chunks), len(chunks), 1, blocks, longest, mask)


def _prefill_group(chunk: Chunk, first: int, block_size: int, repeats: int, dtype: torch.dtype,
                   device: str) -> Group:
    length = chunk.start + chunk.count
    blocks = torch.tensor(chunk.block_ids[: -(-length // block_size)], device=device)
    mask = None
    if chunk.count > 1:
        positions = torch.arange(chunk.start, length, device=device)
        hidden = torch.arange(length, device=device) > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
        mask = mask.repeat(repeats, 1)[None, None]
    return Group(first, first + chunk.count, 1, chunk.count, blocks, length, mask)


def write_cache(cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """keys and values [T, kv_heads, head_dim] go to their slots."""
    flat = cache.flatten(1, 2)
    flat[0].index_copy_(0, slots, keys)
    flat[1].index_copy_(0, slots, values)


def attend(queries: torch.Tensor, cache: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """queries [T, heads, head_dim], in the order of the plan's rows -> [T, heads * head_dim]."""
    outputs = [_attend_group(queries[group.first:group.last], cache, group) for group in plan.groups]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_group(queries: torch.Tensor, cache: torch.Tensor, group: Group) -> torch.Tensor:
    _, heads, head_dim = queries.shape
    kv_heads = cache.shape[3]
    repeats = heads // kv_heads
    # [2, requests, tokens of the blocks, kv_heads, head_dim], cut to what is looked at
    gathered = cache.index_select(1, group.blocks).view(2, group.requests, -1, kv_heads, head_dim)
    keys, values = gathered[:, :, : group.length].transpose(2, 3).unbind(0)
    # The query heads that share a key-value head lie side by side: they are more queries of that head.
    split = queries.view(group.requests, group.queries, kv_heads, repeats, head_dim).permute(0, 2, 3, 1, 4)
    split = split.reshape(group.requests, kv_heads, repeats * group.queries, head_dim)
    answer = functional.scaled_dot_product_attention(split, keys, values, attn_mask=group.mask)
    answer = answer.reshape(group.requests, kv_heads, repeats, group.queries, head_dim).permute(0, 3, 1, 2, 4)
    return answer.reshape(group.requests * group.queries, heads * head_dim)
