"""The models that tests load as SGLang does: it imports no other ones then. For sglang_process.py, by
$SGLANG_EXTERNAL_MODEL_PACKAGE."""
