"""The models that the servers of tests have: SGLang imports no other ones then, which takes it most of a minute. For
sglang_server.py, by $SGLANG_EXTERNAL_MODEL_PACKAGE."""
