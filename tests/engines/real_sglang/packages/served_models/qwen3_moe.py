"""Qwen3-MoE, which the tests of real_sglang train."""

from sglang.srt.models.qwen3_moe import EntryClass as EntryClass
