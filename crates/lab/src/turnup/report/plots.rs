//! Lines over time and over windows, as SVG that takes its colours from the page.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A line with its name.
pub(super) struct Series {
    /// For the legend.
    pub(super) name: String,
    /// From left to right.
    pub(super) points: Vec<(f64, f64)>,
}

/// Colours that differ in lightness too, for those who do not see hues.
const COLOURS: [RGBColor; 6] = [
    RGBColor(37, 99, 235),
    RGBColor(217, 119, 6),
    RGBColor(22, 163, 74),
    RGBColor(148, 163, 184),
    RGBColor(190, 24, 93),
    RGBColor(8, 145, 178),
];
/// Stands in the drawing where the page's text colour belongs.
const TEXT: RGBColor = RGBColor(1, 2, 3);
/// How plotters writes [`TEXT`].
const TEXT_WRITTEN: &str = "#010203";
const SIZE: (u32, u32) = (760, 300);
/// Room for the legend above the highest point.
const HEADROOM: f64 = 1.3;

/// Lines in one chart; the first has points.
///
/// # Errors
/// When the drawing fails.
pub(super) fn lines(title: &str, x: &str, y: &str, series: &[Series]) -> Result<String> {
    let points = || series.iter().flat_map(|one| one.points.iter());
    let right = points().map(|point| point.0).fold(0.0_f64, f64::max);
    let top = points().map(|point| point.1).fold(0.0_f64, f64::max);
    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, SIZE).into_drawing_area();
        let failed = |error: DrawingAreaErrorKind<std::io::Error>| anyhow!("drawing: {error}");
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 15).into_font().color(&TEXT))
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right.max(1e-9) * 1.02, 0.0..top.max(1e-9) * HEADROOM)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc(x)
            .y_desc(y)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(("sans-serif", 11).into_font().color(&TEXT))
            .draw()
            .map_err(failed)?;
        for (index, one) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart
                .draw_series(
                    LineSeries::new(one.points.iter().copied(), colour.stroke_width(2))
                        .point_size(2),
                )
                .map_err(failed)?
                .label(one.name.clone())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 11).into_font().color(&TEXT))
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(drawing.replace(TEXT_WRITTEN, "currentColor"))
}
