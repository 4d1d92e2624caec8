"""Llama, which the tests of real_sglang train."""

from sglang.srt.models.llama import EntryClass as EntryClass
