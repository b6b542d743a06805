"""One small file per model family: from its configuration to a `DecoderSpec`."""
