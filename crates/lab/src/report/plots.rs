//! Bar charts as SVG that takes its colours from the page.

use anyhow::Result;
use plotters::prelude::*;

use host::drawing::{AMBER, BLUE, GREEN, GREY, TEXT, svg};

/// A group of bars: a file or a workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BarGroup {
    /// Label below the group.
    pub(super) name: String,
    /// A value per series; `None` is not drawn.
    pub(super) values: Vec<Option<f64>>,
}

/// Colours; the first is for the series with which the others are compared.
pub(super) const COLOURS: [RGBColor; 4] = [GREY, BLUE, GREEN, AMBER];

const HEIGHT: u32 = 320;
const WIDTH: u32 = 760;
/// Room for a file's name below its bars.
const WIDTH_PER_GROUP: u32 = 60;
/// Room for the legend above the highest bar.
const HEADROOM: f64 = 1.4;

/// Groups of bars side by side, one bar per series, as an `<svg>` element.
///
/// # Errors
/// When the drawing fails.
pub(super) fn bars(
    title: &str,
    unit: &str,
    series: &[&str],
    groups: &[BarGroup],
) -> Result<String> {
    let width = WIDTH.max(WIDTH_PER_GROUP * u32::try_from(groups.len()).unwrap_or(0));
    let highest = groups
        .iter()
        .flat_map(|group| group.values.iter().flatten())
        .copied()
        .fold(0.0_f64, f64::max);
    svg((width, HEIGHT), |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 16).into_font().color(&TEXT))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(
                0.0..groups.len().max(1) as f64,
                0.0..(highest * HEADROOM).max(0.001),
            )?;
        let names: Vec<String> = groups.iter().map(|group| group.name.clone()).collect();
        let label = |x: &f64| {
            let index = x.floor();
            if (x - index - 0.5).abs() < 0.01 {
                names.get(index as usize).cloned().unwrap_or_default()
            } else {
                String::new()
            }
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(groups.len() * 2 + 1)
            .x_label_formatter(&label)
            .y_desc(unit)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(("sans-serif", 11).into_font().color(&TEXT))
            .draw()?;
        let bar = 0.8 / series.len().max(1) as f64;
        for (index, name) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let rectangles = groups.iter().enumerate().filter_map(|(place, group)| {
                let value = group.values.get(index).copied().flatten()?;
                let left = place as f64 + 0.1 + bar * index as f64;
                Some(Rectangle::new(
                    [(left, 0.0), (left + bar * 0.92, value)],
                    colour.filled(),
                ))
            });
            chart
                .draw_series(rectangles)?
                .label(*name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 12).into_font().color(&TEXT))
            .draw()?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawing_is_self_contained_and_inherits_colour() {
        let groups = [BarGroup {
            name: "2M.doc".to_owned(),
            values: vec![Some(2.0), None],
        }];
        let svg = bars("Title", "s", &["baseline", "cold"], &groups).unwrap();
        assert!(svg.starts_with("<svg"));
        assert!(svg.contains("currentColor"));
        assert!(svg.contains("2M.doc"));
        assert!(!svg.contains("href"));
    }
}
