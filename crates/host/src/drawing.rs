//! SVG drawings that take their colours from the surrounding page; shared by all charts.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Area in which a chart is drawn.
pub type ChartArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Error of a drawing.
pub type ChartError = DrawingAreaErrorKind<std::io::Error>;

// Colours that differ in lightness too, for those who do not see hues.
/// Grey of grids and reference lines.
pub const GREY: RGBColor = RGBColor(148, 163, 184);
/// Blue of the first series.
pub const BLUE: RGBColor = RGBColor(37, 99, 235);
/// Green of the second series.
pub const GREEN: RGBColor = RGBColor(22, 163, 74);
/// Amber of the third series.
pub const AMBER: RGBColor = RGBColor(217, 119, 6);
/// Rose of the fourth series.
pub const ROSE: RGBColor = RGBColor(190, 24, 93);
/// Cyan of the fifth series.
pub const CYAN: RGBColor = RGBColor(8, 145, 178);

/// Placeholder for the page's text colour in a drawing.
pub const TEXT: RGBColor = RGBColor(1, 2, 3);
/// Form in which plotters writes [`TEXT`].
const TEXT_WRITTEN: &str = "#010203";

/// Renders the drawing of `draw` as an `<svg>` element of this width and height in pixels.
///
/// # Errors
/// When the drawing fails.
pub fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&ChartArea<'_>) -> Result<(), ChartError>,
) -> Result<String> {
    let mut drawing = String::new();
    {
        let area = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        draw(&area)
            .and_then(|()| area.present())
            .map_err(|error| anyhow!("drawing: {error}"))?;
    }
    Ok(drawing.replace(TEXT_WRITTEN, "currentColor"))
}
