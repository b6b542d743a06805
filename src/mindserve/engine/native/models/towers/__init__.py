"""Vision and audio towers: graphs of their own, whose outputs stand in for embeddings in the text model's prompt."""
