"""Those of tests/layouts/hf_models.py, and those of test_sglang_recordings.py."""

from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM
from sglang.srt.models.gemma2 import Gemma2ForCausalLM
from sglang.srt.models.glm4 import Glm4ForCausalLM
from sglang.srt.models.glm4_moe import Glm4MoeForCausalLM
from sglang.srt.models.gpt_oss import GptOssForCausalLM
from sglang.srt.models.kimi_linear import KimiLinearForCausalLM
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.longcat_flash import LongcatFlashForCausalLM
from sglang.srt.models.mamba2 import Mamba2ForCausalLM
from sglang.srt.models.minimax_m3 import MiniMaxM3SparseForCausalLM
from sglang.srt.models.mixtral import MixtralForCausalLM
from sglang.srt.models.qwen2 import Qwen2ForCausalLM
from sglang.srt.models.qwen2_moe import Qwen2MoeForCausalLM
from sglang.srt.models.qwen3 import Qwen3ForCausalLM
from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM
from sglang.srt.models.qwen3_next import Qwen3NextForCausalLM

EntryClass = [
    DeepseekV3ForCausalLM,
    Gemma2ForCausalLM,
    Glm4ForCausalLM,
    Glm4MoeForCausalLM,
    GptOssForCausalLM,
    KimiLinearForCausalLM,
    LlamaForCausalLM,
    LongcatFlashForCausalLM,
    Mamba2ForCausalLM,
    MiniMaxM3SparseForCausalLM,
    MixtralForCausalLM,
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
    Qwen3NextForCausalLM,
]
