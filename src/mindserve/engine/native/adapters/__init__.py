"""LoRA adapters: read from PEFT directories, beside the model in a graph of their own, many in one batch."""
