//! Line plots as SVG, in a wide and a narrow form so that labels stay legible on small screens.

use anyhow::Result;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use host::drawing::{AMBER, BLUE, GREEN, GREY, TEXT, svg};

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlotLine {
    /// Name in the legend.
    pub(super) name: String,
    /// Place of its colour.
    pub(super) colour: usize,
    /// True for published figures, which are drawn thin and with open points.
    pub(super) is_published: bool,
    /// Points.
    pub(super) points: Vec<(f64, f64)>,
}

/// Axes of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlotAxes {
    /// Name of the horizontal axis.
    pub(super) x: String,
    /// Name of the vertical axis.
    pub(super) y: String,
    /// Marked places of the horizontal axis, with their labels.
    pub(super) ticks: Vec<(f64, String)>,
    /// True for a logarithmic vertical axis.
    pub(super) is_logarithmic: bool,
}

const COLOURS: [RGBColor; 4] = [GREY, BLUE, GREEN, AMBER];
/// Size and font of the two forms. The page shows the wide one from 780 pixels on and on paper, and scales it by 0.94 at
/// least. A drawing has a font size of 0.81 times the given one (as plotters writes it), so that labels have 11 pixels or
/// more at 360 pixels and above.
const FORMS: [(&str, (u32, u32), u32); 2] = [("wide", (760, 380), 15), ("narrow", (340, 340), 14)];

/// An axis: a range whose key points are the measured ones.
pub(super) struct MeasuredPlaces {
    /// Range.
    pub(super) range: std::ops::Range<f64>,
    /// Key points.
    pub(super) places: Vec<f64>,
}

impl Ranged for MeasuredPlaces {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share) as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.places.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

/// Draws lines in both forms, as two `<svg>` elements of the classes `wide` and `narrow`.
///
/// # Errors
/// When the drawing fails.
pub(super) fn lines(axes: &PlotAxes, lines: &[PlotLine]) -> Result<String> {
    let mut out = String::new();
    for (class, size, font) in FORMS {
        let drawing = match axes.is_logarithmic {
            true => draw_logarithmic(axes, lines, size, font)?,
            false => draw_linear(axes, lines, size, font)?,
        };
        out += &drawing.replacen("<svg ", &format!("<svg class=\"{class}\" "), 1);
        out.push('\n');
    }
    Ok(out)
}

fn horizontal(axes: &PlotAxes) -> MeasuredPlaces {
    let places: Vec<f64> = axes.ticks.iter().map(|(place, _)| *place).collect();
    let first = places.iter().copied().fold(f64::INFINITY, f64::min);
    let last = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = match last > first {
        true => first..last,
        false => (last - 1.0)..(last + 1.0),
    };
    MeasuredPlaces { range, places }
}

fn values(lines: &[PlotLine]) -> impl Iterator<Item = f64> + '_ {
    lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|(_, value)| *value)
}

// The two forms of a chart have different types, so the drawing is a macro.
macro_rules! draw {
    ($area:expr, $axes:expr, $lines:expr, $font:expr, $vertical:expr) => {{
        let font = ("sans-serif", $font).into_font().color(&TEXT);
        let mut chart = ChartBuilder::on($area)
            .margin(10)
            .margin_right(18)
            .x_label_area_size($font * 3)
            .y_label_area_size($font * 5)
            .build_cartesian_2d(horizontal($axes), $vertical)?;
        let label = |place: &f64| {
            let tick = $axes
                .ticks
                .iter()
                .find(|(other, _)| (other - place).abs() < 1e-9);
            tick.map(|(_, label)| label.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_label_formatter(&label)
            .y_label_formatter(&|value: &f64| format!("{value:.0}"))
            .x_desc(&$axes.x)
            .y_desc(&$axes.y)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(font.clone())
            .draw()?;
        for line in $lines {
            let colour = COLOURS[line.colour % COLOURS.len()];
            let (width, fill) = match line.is_published {
                true => (1, colour.stroke_width(1)),
                false => (3, colour.filled()),
            };
            chart
                .draw_series(LineSeries::new(
                    line.points.iter().copied(),
                    colour.stroke_width(width),
                ))?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(width))
                });
            chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 4, fill)))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(font)
            .draw()?;
        Ok(())
    }};
}

fn draw_linear(axes: &PlotAxes, lines: &[PlotLine], size: (u32, u32), font: u32) -> Result<String> {
    let highest = values(lines).fold(0.0, f64::max).max(0.001);
    svg(size, |area| {
        draw!(area, axes, lines, font, 0.0..highest * 1.8)
    })
}

fn draw_logarithmic(
    axes: &PlotAxes,
    lines: &[PlotLine],
    size: (u32, u32),
    font: u32,
) -> Result<String> {
    let highest = values(lines).fold(1.0, f64::max);
    let lowest = values(lines)
        .filter(|value| *value > 0.0)
        .fold(highest, f64::min);
    // The legend takes two fifths of the height.
    let headroom = (highest / lowest).powf(0.75).max(10.0);
    let range = (lowest / 1.5)..(highest * headroom);
    let shown: Vec<PlotLine> = lines
        .iter()
        .map(|line| PlotLine {
            points: line
                .points
                .iter()
                .copied()
                .filter(|(_, value)| *value > 0.0)
                .collect(),
            ..line.clone()
        })
        .collect();
    svg(size, |area| {
        draw!(area, axes, &shown, font, range.log_scale())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_lines_and_ticks() {
        for is_logarithmic in [false, true] {
            let axes = PlotAxes {
                x: "delay in ms".to_owned(),
                y: "kB/s".to_owned(),
                ticks: vec![(0.0, "0".to_owned()), (250.0, "250".to_owned())],
                is_logarithmic,
            };
            let line = PlotLine {
                name: "A".to_owned(),
                colour: 1,
                is_published: false,
                points: vec![(0.0, 100.0), (250.0, 0.0), (250.0, 50.0)],
            };
            let drawing = lines(&axes, &[line]).unwrap();
            assert_eq!(drawing.matches("<svg class=").count(), 2);
            assert!(drawing.contains("250") && drawing.contains("currentColor"));
        }
    }
}
