"""The wire contract: `parse_request` turns bytes into a `ChatRequest`, for either API mode."""

from mindserve.contract.context import ValidationContext
from mindserve.contract.validate import parse_request

__all__ = ["ValidationContext", "parse_request"]
