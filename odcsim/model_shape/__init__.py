"""A decoder's shape: its parameters and FLOPs (`shape`), and where it comes from (`source`, `huggingface`)."""

from odcsim.model_shape.huggingface import SlidingWindowWarning
from odcsim.model_shape.shape import ModelShape
from odcsim.model_shape.source import load_model

__all__ = ["ModelShape", "SlidingWindowWarning", "load_model"]
