//! Horizontal bars as SVG, one group for each file, in a wide and a narrow form.
//!
//! ```text
//!  50K.doc  ████████████  ours, baseline
//!           ▒▒▒▒▒▒▒▒▒▒    published, baseline
//!           ███           ours, cold
//!           ▒▒            published, cold
//!           └────┴────┴─ seconds
//! ```
//! Names stand beside their bars, so that they stay legible with many files and on small screens. The legend is text of
//! the page.

use std::fmt::Write;

use anyhow::Result;
use host::html::escape;
use plotters::prelude::*;

use super::lines::MeasuredPlaces;
use super::plots::{BarGroup, COLOURS};
use host::drawing::{TEXT, svg};

/// Bars of one name and colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BarSeries {
    /// Name in the legend.
    pub(super) name: String,
    /// Place of its colour.
    pub(super) colour: usize,
    /// True for published figures, which are drawn light.
    pub(super) is_published: bool,
}

/// Width in pixels and font of the two forms, as for [lines](super::lines).
const FORMS: [(&str, u32, u32); 2] = [("wide", 760, 15), ("narrow", 340, 14)];
/// Height of a bar, and of the gap between two groups, in pixels.
const BAR: u32 = 7;
const GAP: u32 = 8;
/// Share of a bar's place that it fills.
const FILLED: f64 = 0.86;
/// Opacity of published bars.
const LIGHT: f64 = 0.45;

/// Draws the groups from top to bottom in both forms, as two `<svg>` elements of the classes `wide` and `narrow`, below a
/// legend.
///
/// # Errors
/// When the drawing fails.
pub(super) fn horizontal_bars(
    unit: &str,
    series: &[BarSeries],
    groups: &[BarGroup],
) -> Result<String> {
    let mut out = legend(series)?;
    for (class, width, font) in FORMS {
        let drawing = draw(unit, series, groups, width, font)?;
        out += &drawing.replacen("<svg ", &format!("<svg class=\"{class}\" "), 1);
        out.push('\n');
    }
    Ok(out)
}

fn legend(series: &[BarSeries]) -> Result<String> {
    let mut out = "<p class=\"legend\">".to_owned();
    for each in series {
        let RGBColor(red, green, blue) = COLOURS[each.colour % COLOURS.len()];
        let opacity = if each.is_published { LIGHT } else { 1.0 };
        write!(
            out,
            "<span><svg class=\"key\" viewBox=\"0 0 12 12\"><rect width=\"12\" height=\"12\" \
             fill=\"rgb({red},{green},{blue})\" opacity=\"{opacity}\"/></svg> {}</span> ",
            escape(&each.name)
        )?;
    }
    out += "</p>\n";
    Ok(out)
}

fn draw(
    unit: &str,
    series: &[BarSeries],
    groups: &[BarGroup],
    width: u32,
    font: u32,
) -> Result<String> {
    // One step of the vertical axis is one pixel, and the first group is on top.
    let step = series.len() as u32 * BAR + GAP;
    let bars_height = step * groups.len() as u32;
    let axis_height = font * 3;
    let longest = groups.iter().map(|group| group.name.chars().count()).max();
    let names_width = font * (longest.unwrap_or(0) as u32 + 4) / 2;
    let values = groups
        .iter()
        .flat_map(|group| group.values.iter().flatten());
    let highest = values.copied().fold(0.0_f64, f64::max).max(0.001);
    let place = |group: usize, pixels: u32| -f64::from(group as u32 * step + pixels);
    let centres: Vec<f64> = (0..groups.len())
        .map(|group| place(group, step / 2))
        .collect();
    svg((width, bars_height + axis_height + 8), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(font * 2)
            .x_label_area_size(axis_height)
            .y_label_area_size(names_width)
            .build_cartesian_2d(
                0.0..highest * 1.02,
                MeasuredPlaces {
                    range: place(groups.len(), 0)..0.0,
                    places: centres.clone(),
                },
            )?;
        let name = |at: &f64| {
            let group = centres.iter().position(|centre| (centre - at).abs() < 0.5);
            group.map_or(String::new(), |group| groups[group].name.clone())
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_labels(6)
            .y_label_formatter(&name)
            .x_desc(unit)
            .axis_style(TEXT.mix(0.6))
            .bold_line_style(TEXT.mix(0.15))
            .light_line_style(TEXT.mix(0.0))
            .label_style(("sans-serif", font).into_font().color(&TEXT))
            .draw()?;
        for (index, each) in series.iter().enumerate() {
            let colour = COLOURS[each.colour % COLOURS.len()];
            let opacity = if each.is_published { LIGHT } else { 1.0 };
            let bars = groups.iter().enumerate().filter_map(|(group, bars)| {
                let value = bars.values.get(index).copied().flatten()?;
                let top = place(group, GAP / 2 + index as u32 * BAR);
                let bottom = top - f64::from(BAR) * FILLED;
                Some(Rectangle::new(
                    [(0.0, top), (value, bottom)],
                    colour.mix(opacity).filled(),
                ))
            });
            chart.draw_series(bars)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_a_bar_in_both_forms() {
        let series =
            [("ours, cold", false), ("published, cold", true)].map(|(name, is_published)| {
                BarSeries {
                    name: name.to_owned(),
                    colour: 1,
                    is_published,
                }
            });
        let groups = [("2M.doc", Some(8.41)), ("5M.zip", None)].map(|(name, published)| BarGroup {
            name: name.to_owned(),
            values: vec![Some(2.0), published],
        });
        let page = horizontal_bars("seconds", &series, &groups).unwrap();
        for class in ["wide", "narrow"] {
            assert_eq!(page.matches(&format!("<svg class=\"{class}\"")).count(), 1);
        }
        for text in ["2M.doc", "5M.zip", "seconds"] {
            assert_eq!(page.matches(text).count(), 2, "{text}");
        }
        // Three values in each form, and a square for each series.
        assert_eq!(page.matches("<rect").count(), 3 * 2 + 2);
        assert!(page.contains("ours, cold") && page.contains("published, cold"));
    }
}
