//! Line charts over time and over windows, as SVG that takes its colours from the page.

use anyhow::Result;
use plotters::prelude::*;

use host::drawing::{AMBER, BLUE, CYAN, GREEN, GREY, ROSE, TEXT, svg};

/// A line with its name.
pub(super) struct PlotSeries {
    /// Name for the legend.
    pub(super) name: String,
    /// Points from left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Colours, as many as a standard test has runs in each direction.
const COLOURS: [RGBColor; 7] = [BLUE, AMBER, GREEN, GREY, ROSE, CYAN, VIOLET];
const VIOLET: RGBColor = RGBColor(139, 92, 246);
const SIZE: (u32, u32) = (760, 300);
/// Names that stand above the lines; more stand to the right of them.
const NAMES_ABOVE: usize = 2;

/// Lines in one chart; the first has points.
///
/// # Errors
/// When the drawing fails.
pub(super) fn lines(title: &str, x: &str, y: &str, series: &[PlotSeries]) -> Result<String> {
    let points = || series.iter().flat_map(|one| one.points.iter());
    let right = points().map(|point| point.0).fold(0.0_f64, f64::max);
    let top = points().map(|point| point.1).fold(0.0_f64, f64::max);
    let (room_right, room_above) = match series.len() > NAMES_ABOVE {
        true => (1.3, 1.1),
        false => (1.02, 1.3),
    };
    svg(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 15).into_font().color(&TEXT))
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(
                0.0..right.max(1e-9) * room_right,
                0.0..top.max(1e-9) * room_above,
            )?;
        chart
            .configure_mesh()
            .x_desc(x)
            .y_desc(y)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(("sans-serif", 11).into_font().color(&TEXT))
            .draw()?;
        for (index, one) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart
                .draw_series(
                    LineSeries::new(one.points.iter().copied(), colour.stroke_width(2))
                        .point_size(2),
                )?
                .label(one.name.clone())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 11).into_font().color(&TEXT))
            .draw()?;
        Ok(())
    })
}
