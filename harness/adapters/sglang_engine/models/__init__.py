"""The package that SGLang searches for models (SGLANG_EXTERNAL_MODEL_PACKAGE).

In: batches of the model runner. Out: logits. Imports torch and SGLang.
"""
