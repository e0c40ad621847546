//! Plots as SVG, in a wide and a narrow form so that labels stay legible on small screens. Legends are
//! text of the page.

use anyhow::Result;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use host::drawing::{AMBER, BLUE, GREEN, GREY, TEXT, svg};

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlotCurve {
    /// Colour, and the way it is drawn.
    pub(super) style: CurveStyle,
    /// Points from left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Subject of a line or a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CurveStyle {
    Measured,
    Ours,
    SingleQueue,
    FluidQueue,
}

impl CurveStyle {
    const fn colour(self) -> RGBColor {
        match self {
            CurveStyle::Measured => GREY,
            CurveStyle::Ours => BLUE,
            CurveStyle::SingleQueue => AMBER,
            CurveStyle::FluidQueue => GREEN,
        }
    }

    /// Colour for the page.
    pub(super) fn css(self) -> String {
        let RGBColor(red, green, blue) = self.colour();
        format!("rgb({red},{green},{blue})")
    }

    const fn width(self) -> u32 {
        match self {
            // The measured line lies under the others and is seen beside them.
            CurveStyle::Measured => 6,
            CurveStyle::Ours | CurveStyle::SingleQueue | CurveStyle::FluidQueue => 2,
        }
    }
}

/// An axis with its marked places.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlotAxis {
    pub(super) name: String,
    pub(super) range: (f64, f64),
    pub(super) ticks: Vec<(f64, String)>,
}

impl PlotAxis {
    /// An axis of logarithms of `low` to `high`, marked at 1, 2 and 5 of each decade.
    pub(super) fn logarithmic(name: &str, low: f64, high: f64) -> Self {
        let low = low.max(LOGARITHM_LEAST);
        let high = high.max(low * 1.5);
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let has_room = last - first <= 3;
        let ticks = (first..=last)
            .flat_map(|decade| {
                let steps: &[f64] = if has_room { &[1.0, 2.0, 5.0] } else { &[1.0] };
                steps.iter().map(move |step| step * 10_f64.powi(decade))
            })
            .filter(|value| *value >= low * (1.0 - 1e-9) && *value <= high)
            .map(|value| (value.log10(), short(value)))
            .collect();
        Self {
            name: name.to_owned(),
            range: (low.log10(), high.log10()),
            ticks,
        }
    }

    /// A linear axis with about five marked places.
    pub(super) fn linear(name: &str, low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = round_step((high - low) / 5.0);
        let first = (low / step).ceil() as i64;
        let last = (high / step).floor() as i64;
        let ticks = (first..=last)
            .map(|number| number as f64 * step)
            .map(|value| (value, short(value)))
            .collect();
        Self {
            name: name.to_owned(),
            range: (low, high),
            ticks,
        }
    }

    fn label(&self, place: f64) -> String {
        let width = self.range.1 - self.range.0;
        self.ticks
            .iter()
            .find(|(tick, _)| (tick - place).abs() < width * 1e-9)
            .map(|(_, label)| label.clone())
            .unwrap_or_default()
    }

    fn places(&self) -> MarkedAxis {
        MarkedAxis {
            range: self.range.0..self.range.1,
            places: self.ticks.iter().map(|(place, _)| *place).collect(),
        }
    }
}

/// Smallest value on a logarithmic axis: a nanosecond, in µs.
pub(super) const LOGARITHM_LEAST: f64 = 1e-3;

/// A number of at most four digits for a tick.
fn short(value: f64) -> String {
    let text = match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1e6 => format!("{}M", value / 1e6),
        size if size >= 1e4 => format!("{}k", value / 1e3),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    match text.contains('.') && !text.ends_with(['M', 'k']) {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// The next of 1, 2 and 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let chosen = steps.iter().find(|factor| *factor * power >= step);
    chosen.unwrap_or(&10.0) * power
}

/// A range whose key points are the marked places.
struct MarkedAxis {
    range: std::ops::Range<f64>,
    places: Vec<f64>,
}

impl Ranged for MarkedAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        // A value outside lies on the edge.
        limit.0 + (f64::from(limit.1 - limit.0) * share.clamp(0.0, 1.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.places.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

/// Class, size and font of the two forms; a font of 19 gives letters of 15 pixels. The page shows the
/// wide one from 640 pixels on, and scales it by 0.77 at least, so labels have 11 pixels at least.
const FORMS: [(&str, (u32, u32), u32); 2] = [("wide", (760, 300), 19), ("narrow", (350, 280), 15)];

/// Draws lines in both forms.
///
/// # Errors
/// When the drawing fails.
pub(super) fn curves(x: &PlotAxis, y: &PlotAxis, curves: &[PlotCurve]) -> Result<String> {
    in_both_forms(|area, font| {
        let font_style = ("sans-serif", font).into_font().color(&TEXT);
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(font * 3)
            .y_label_area_size(font * 5)
            .build_cartesian_2d(x.places(), y.places())?;
        chart
            .configure_mesh()
            .x_label_formatter(&|place: &f64| x.label(*place))
            .y_label_formatter(&|place: &f64| y.label(*place))
            .x_desc(&x.name)
            .y_desc(&y.name)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(font_style)
            .draw()?;
        for curve in curves {
            let line = curve.style.colour().stroke_width(curve.style.width());
            chart.draw_series(LineSeries::new(curve.points.iter().copied(), line))?;
        }
        Ok(())
    })
}

/// A group of bars side by side.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BarGroup {
    /// Label below the group.
    pub(super) name: String,
    /// Bars from left to right.
    pub(super) bars: Vec<(CurveStyle, f64)>,
}

/// Draws groups of bars in both forms.
///
/// # Errors
/// When the drawing fails.
pub(super) fn bars(y: &PlotAxis, groups: &[BarGroup]) -> Result<String> {
    let x = PlotAxis {
        name: String::new(),
        range: (0.0, groups.len().max(1) as f64),
        ticks: groups
            .iter()
            .enumerate()
            .map(|(index, group)| (index as f64 + 0.5, group.name.clone()))
            .collect(),
    };
    in_both_forms(|area, font| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(font * 2)
            .y_label_area_size(font * 5)
            .build_cartesian_2d(x.places(), y.places())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_label_formatter(&|place: &f64| x.label(*place))
            .y_label_formatter(&|place: &f64| y.label(*place))
            .y_desc(&y.name)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(("sans-serif", font).into_font().color(&TEXT))
            .draw()?;
        for (place, group) in groups.iter().enumerate() {
            let width = 0.8 / group.bars.len().max(1) as f64;
            let bars = group
                .bars
                .iter()
                .enumerate()
                .map(|(index, (style, value))| {
                    let left = place as f64 + 0.1 + width * index as f64;
                    Rectangle::new(
                        [(left, 0.0), (left + width * 0.9, *value)],
                        style.colour().filled(),
                    )
                });
            chart.draw_series(bars)?;
        }
        Ok(())
    })
}

fn in_both_forms(
    draw: impl Fn(&host::drawing::ChartArea<'_>, u32) -> Result<(), host::drawing::ChartError>,
) -> Result<String> {
    let mut out = String::new();
    for (class, size, font) in FORMS {
        let drawing = svg(size, |area| draw(area, font))?;
        out += &drawing.replacen("<svg ", &format!("<svg class=\"{class}\" "), 1);
        out.push('\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_marked_at_round_values() {
        let labels = |axis: &PlotAxis| -> Vec<String> {
            axis.ticks.iter().map(|(_, label)| label.clone()).collect()
        };
        let axis = PlotAxis::logarithmic("us", 3.0, 120.0);
        assert_eq!(labels(&axis), ["5", "10", "20", "50", "100"]);
        let axis = PlotAxis::logarithmic("us", 0.5, 2e6);
        assert_eq!(
            labels(&axis),
            ["1", "10", "100", "1000", "10k", "100k", "1M"]
        );
        let axis = PlotAxis::linear("us", -0.4, 1.0);
        assert_eq!(labels(&axis), ["0", "0.5", "1"]);
        // A range without width has a tick as well.
        assert!(!PlotAxis::linear("us", 0.0, 0.0).ticks.is_empty());
        assert!(!PlotAxis::logarithmic("us", 0.0, 0.0).ticks.is_empty());
    }

    #[test]
    fn drawings_are_self_contained_in_both_forms() {
        let x = PlotAxis::logarithmic("delay, us", 1.0, 100.0);
        let y = PlotAxis::linear("share", 0.0, 1.0);
        let line = PlotCurve {
            style: CurveStyle::Ours,
            points: vec![(0.0, 0.0), (2.0, 1.0)],
        };
        let group = BarGroup {
            name: "run 7".to_owned(),
            bars: vec![(CurveStyle::Measured, 0.5), (CurveStyle::Ours, 0.4)],
        };
        for drawing in [
            curves(&x, &y, &[line]).unwrap(),
            bars(&y, &[group]).unwrap(),
        ] {
            assert!(drawing.contains("class=\"wide\"") && drawing.contains("class=\"narrow\""));
            assert!(drawing.contains("currentColor") && !drawing.contains("href"));
        }
    }
}
