"""From facts about the data to a config, with reasons."""

from smallvit.recipes.facts import Choice, Facts
from smallvit.recipes.plan import Plan, plan
from smallvit.recipes.recipes import ADDITIONS, RECIPES, Addition, Recipe

__all__ = ["ADDITIONS", "RECIPES", "Addition", "Choice", "Facts", "Plan", "Recipe", "plan"]
