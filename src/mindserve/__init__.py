"""mindserve: a chat-completions inference server. The map of the house is docs/architecture.md."""

__version__ = "0.1.0"
