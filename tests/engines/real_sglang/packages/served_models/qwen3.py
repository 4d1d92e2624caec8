"""Qwen3, which the tests of real_sglang train."""

from sglang.srt.models.qwen3 import EntryClass as EntryClass
