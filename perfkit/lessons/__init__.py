"""What notebooks import: predictions, checks, and each lesson's helpers."""

from perfkit.lessons.checks import check
from perfkit.lessons.predictions import predict, reveal

__all__ = ["check", "predict", "reveal"]
