"""All drawers by model type."""

import draw_latent
import draw_linear
import draw_more
import draw_softmax
import draw_state_space
from drawing import DRAWERS

__all__ = ["DRAWERS", "draw_latent", "draw_linear", "draw_more", "draw_softmax", "draw_state_space"]
