"""From facts about the data to a config, with reasons."""

from smallvit.recipes.plan import Plan, plan
from smallvit.recipes.recipes import RECIPES, Facts, demo

__all__ = ["RECIPES", "Facts", "Plan", "demo", "plan"]
