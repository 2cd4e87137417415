"""A chart as an SVG file of its own, for papers and documents."""

from smallvit.reporting.charts import Chart
from smallvit.reporting.report import render

_LINE = 17  # of the legend, in units of the chart
_SHORT = 18  # letters of which two fit beside each other


def figure_svg(chart: Chart) -> str:
    """The chart with its title and legend; dark where the reader's screen is."""
    columns = 1 if any(len(each.label) > _SHORT for each in chart.series) else 2
    below = _LINE * -(-len(chart.series) // columns) + 8
    return render("figure.svg", {"it": chart, "below": below, "line": _LINE, "columns": columns})
