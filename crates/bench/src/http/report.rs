//! Figures by their agreed names, and for each that is missing the reason.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::HttpCell;
use host::median::median;

/// Every figure and the cell that gives it.
pub const FIGURES: [(&str, HttpCell); 21] = [
    ("http1_cold_ratio", HttpCell::Page),
    ("http1_warm_ratio", HttpCell::Page),
    ("http1_warm_round_trips", HttpCell::Page),
    ("http1_lan_load_s", HttpCell::Page),
    ("lan_load_s", HttpCell::Page),
    ("http1_without_load_s", HttpCell::Page),
    ("http1_cold_load_s", HttpCell::Page),
    ("http1_warm_load_s", HttpCell::Page),
    ("h2_tls_cold_ratio", HttpCell::PageByTls),
    ("h2_tls_warm_ratio", HttpCell::PageByTls),
    ("h2_tls_warm_round_trips", HttpCell::PageByTls),
    ("h2_tls_lan_load_s", HttpCell::PageByTls),
    ("fresh_object_wan_bytes", HttpCell::Objects),
    ("revalidated_object_wan_bytes", HttpCell::Objects),
    ("origin_requests_for_1000_clients", HttpCell::Crowd),
    ("throughput_ratio", HttpCell::Throughput),
    ("idle_connection_bytes", HttpCell::Idle),
    ("cache_tests_required", HttpCell::CacheTests),
    ("cache_tests_optimal", HttpCell::CacheTests),
    ("cache_tests_staleness_failures", HttpCell::CacheTests),
    ("h2spec_passed", HttpCell::H2spec),
];

/// A figure that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingFigure {
    /// Its name.
    pub figure: String,
    /// The cause, in a sentence.
    pub reason: String,
}

/// Result of a bench.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HttpReport {
    /// Figures by name; null where there is none.
    pub figures: Map<String, Value>,
    /// The reasons of those that are null.
    pub not_measured: Vec<MissingFigure>,
    /// Faults of the measurement, in sentences.
    pub faults: Vec<String>,
    /// Raw values of the figures, by cell.
    pub raw: BTreeMap<String, Value>,
    /// Somebody ended it early.
    pub is_interrupted: bool,
}

/// Result of one cell.
#[derive(Clone, Debug, Default)]
pub(super) struct CellFigures {
    pub(super) figures: Map<String, Value>,
    pub(super) missing: Vec<MissingFigure>,
    pub(super) faults: Vec<String>,
    pub(super) raw: Value,
}

impl CellFigures {
    /// Adds a figure.
    pub(super) fn add(&mut self, name: &str, value: impl Serialize) {
        self.figures.insert(name.to_owned(), json!(value));
    }

    /// Adds a figure that is a median, with its interval.
    pub(super) fn add_median(&mut self, name: &str, values: &[f64]) {
        self.add(name, median(values.iter().copied()));
        self.add(&format!("{name}_interval"), interval(values));
    }

    /// Adds the reason of a figure that this cell could not give.
    pub(super) fn miss(&mut self, name: &str, reason: &str) {
        self.missing.push(MissingFigure {
            figure: name.to_owned(),
            reason: reason.to_owned(),
        });
    }
}

impl HttpReport {
    /// With nothing measured.
    pub(super) fn new() -> Self {
        let null = |(name, _): &(&str, HttpCell)| ((*name).to_owned(), Value::Null);
        Self {
            figures: FIGURES.iter().map(null).collect(),
            ..Self::default()
        }
    }

    /// Takes what a cell gave.
    pub(super) fn take(&mut self, cell: HttpCell, measured: CellFigures) {
        self.figures.extend(measured.figures);
        self.not_measured.extend(measured.missing);
        let faults = measured.faults.into_iter();
        self.faults
            .extend(faults.map(|fault| format!("{cell}: {fault}")));
        self.raw.insert(cell.name().to_owned(), measured.raw);
    }

    /// Notes why a cell gave nothing.
    pub(super) fn miss(&mut self, cell: HttpCell, reason: &str) {
        for (name, _) in FIGURES.iter().filter(|(_, of)| *of == cell) {
            self.not_measured.push(MissingFigure {
                figure: (*name).to_owned(),
                reason: reason.to_owned(),
            });
        }
    }

    /// Gives each figure that is still missing a reason.
    pub(super) fn finish(&mut self, is_interrupted: bool) {
        self.is_interrupted = is_interrupted;
        for (name, cell) in FIGURES {
            let is_known = self
                .not_measured
                .iter()
                .any(|missing| missing.figure == name);
            if self.figures[name].is_null() && !is_known {
                let reason = match is_interrupted {
                    true => "the bench was interrupted".to_owned(),
                    false => format!("the cell {cell} was not chosen"),
                };
                self.not_measured.push(MissingFigure {
                    figure: name.to_owned(),
                    reason,
                });
            }
        }
    }
}

/// An interval that holds the median with a confidence of 95 % at least: order statistics by the binomial
/// distribution. With fewer than six values it is the least and the greatest, which hold it less surely.
pub(super) fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // The chance that at most `rank` of `count` values are below the median, summed as the ranks are passed.
    let (mut chance, mut term, mut rank) = (0.0, 0.5_f64.powi(i32::try_from(count).ok()?), 0);
    while rank < count / 2 {
        chance += term;
        if chance > 0.025 {
            break;
        }
        term *= (count - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    let low = rank.saturating_sub(1);
    Some([*sorted.get(low)?, sorted[count - 1 - low]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_figure_has_one_reason() {
        let mut report = HttpReport::new();
        let mut measured = CellFigures::default();
        measured.add_median("throughput_ratio", &[0.97]);
        report.take(HttpCell::Throughput, measured);
        report.miss(HttpCell::Page, "there is no Chromium");
        report.finish(false);
        for (name, cell) in FIGURES {
            let reasons = report.not_measured.iter();
            let reasons: Vec<_> = reasons.filter(|missing| missing.figure == name).collect();
            match cell {
                HttpCell::Throughput => assert_eq!(report.figures[name], json!(0.97)),
                _ => assert!(
                    report.figures[name].is_null() && reasons.len() == 1,
                    "{name}"
                ),
            }
        }
    }

    /// Of 15 values the fourth and the twelfth hold the median with 96.5 %.
    #[test]
    fn intervals_are_order_statistics() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(interval(&values), Some([4.0, 12.0]));
        assert_eq!(interval(&[3.0, 1.0, 2.0]), Some([1.0, 3.0]));
        assert_eq!(interval(&[5.0]), Some([5.0, 5.0]));
        assert_eq!(interval(&[]), None);
        let six: Vec<f64> = (1..=6).map(f64::from).collect();
        assert_eq!(interval(&six), Some([1.0, 6.0]));
    }
}
