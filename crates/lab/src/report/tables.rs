//! Tables of a campaign: cells of one protocol over one link, by delay or by chance of loss.

use std::time::Duration;

use super::statistics::{self, ComparisonVerdict};
use crate::cells::{
    CacheState, CampaignOutcome, CellMode, CellResult, CellStatus, FecSetting, PublishedEvaluation,
};

/// One table of a report.
#[derive(Debug)]
pub(super) struct CellTable<'a> {
    /// Title.
    pub(super) title: String,
    /// True if rows are chances of loss and columns are FEC settings.
    pub(super) is_of_losses: bool,
    /// True if the published figure has a logarithmic scale.
    pub(super) is_logarithmic: bool,
    /// Cells in the plan's order.
    pub(super) cells: Vec<&'a CellResult>,
}

/// Cells of a table that differ in nothing but delay or loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CellVariant {
    /// Mode.
    pub(super) mode: CellMode,
    /// Forward error correction; `None` where no node runs.
    pub(super) fec: Option<FecSetting>,
}

/// Measured delays at which a mode is better than the baseline, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TurningPoint {
    /// At all of them, from the shortest to the longest.
    Everywhere(f64, f64),
    /// From this one on, up to the longest.
    From(f64, f64),
    /// As [`Self::From`], with a first delay that is interpolated between two measured ones.
    FromAbout(f64, f64),
    /// At the first ones, and not at the others between which they lie.
    At(Vec<f64>, Vec<f64>),
    /// At none of them, from the shortest to the longest.
    Nowhere(f64, f64),
}

/// Comparison of a mode with the baseline at one delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DelayComparison {
    /// One-way delay in milliseconds.
    pub(super) delay_ms: f64,
    /// Logarithm of the mode's figure over that of the baseline; infinite where a transfer failed.
    pub(super) log_ratio: f64,
    /// True if the mode is better.
    pub(super) is_ahead: bool,
}

/// The tables of an outcome, in the plan's order; cells of file sets are not among them.
pub(super) fn tables(outcome: &CampaignOutcome) -> Vec<CellTable<'_>> {
    let mut found: Vec<(String, CellTable<'_>)> = Vec::new();
    for result in &outcome.cells {
        let cell = &result.cell;
        if cell.cache != CacheState::RandomOnce {
            continue;
        }
        let is_of_losses = cell.figures.loss > 0.0;
        let delay = cell.figures.one_way_delay;
        let key = match is_of_losses {
            true => format!(
                "{} {} loss {delay:?} {:?}",
                cell.protocol, cell.link, cell.mode
            ),
            false => format!("{} {}", cell.protocol, cell.link),
        };
        if let Some((_, table)) = found.iter_mut().find(|(other, _)| *other == key) {
            table.cells.push(result);
            continue;
        }
        let published = outcome.plan.published;
        found.push((
            key,
            CellTable {
                title: title(published, result),
                is_of_losses,
                is_logarithmic: !is_of_losses
                    && cell.figures.down_bit_s.is_none_or(|rate| rate > 10_000_000),
                cells: vec![result],
            },
        ));
    }
    found.into_iter().map(|(_, table)| table).collect()
}

/// Title of the table that a cell belongs to.
fn title(published: Option<PublishedEvaluation>, result: &CellResult) -> String {
    let cell = &result.cell;
    let delay = vocab::format_duration(cell.figures.one_way_delay);
    let text = match cell.figures.loss > 0.0 {
        true => {
            let mode = cell.mode.letter();
            format!(
                "{} with loss over {} at {delay}, mode {mode}",
                cell.protocol, cell.link
            )
        }
        false => format!("{} over {}", cell.protocol, cell.link),
    };
    let number = (published == Some(PublishedEvaluation::Wx2006))
        .then(|| published_number(result))
        .flatten();
    match number {
        Some((table, figure)) => format!("{text} (published: table {table}, figure {figure})"),
        None => text,
    }
}

/// Numbers of the published table and figure.
fn published_number(result: &CellResult) -> Option<(u32, u32)> {
    let cell = &result.cell;
    let is_delayed = cell.figures.one_way_delay > Duration::ZERO;
    let loss = cell.figures.loss > 0.0;
    match (cell.protocol.as_str(), cell.link.as_str(), loss) {
        ("CIFS", "T1", false) => Some((10, 2)),
        ("CIFS", "OC-1", false) => Some((11, 3)),
        ("MAPI-XP", "T1", false) => Some((12, 4)),
        ("MAPI-XP", "OC-1", false) => Some((13, 5)),
        ("MAPI-2003", "T1", false) => Some((14, 6)),
        ("MAPI-2003", "OC-1", false) => Some((15, 7)),
        ("CIFS", "OC-1", true) if !is_delayed => Some((16, 8)),
        ("MAPI-XP", "OC-1", true) if !is_delayed => Some((17, 9)),
        ("MAPI-XP", "OC-1", true) => Some((18, 10)),
        _ => None,
    }
}

/// The baseline of the same protocol, link, delay and loss.
pub(super) fn baseline_of<'a>(
    outcome: &'a CampaignOutcome,
    result: &CellResult,
) -> Option<&'a CellResult> {
    let own = &result.cell;
    outcome.cells.iter().find(|other| {
        let cell = &other.cell;
        cell.mode == CellMode::Baseline
            && cell.protocol == own.protocol
            && cell.workload == own.workload
            && cell.settings == own.settings
            && cell.load == own.load
            && other.status == CellStatus::Measured
    })
}

impl CellTable<'_> {
    /// Tells whether any cell has a published figure.
    pub(super) fn has_published(&self) -> bool {
        self.cells.iter().any(|cell| cell.published.is_some())
    }

    /// Variants of its cells, ordered by mode.
    pub(super) fn variants(&self) -> Vec<CellVariant> {
        let mut variants: Vec<CellVariant> = self
            .cells
            .iter()
            .map(|cell| CellVariant::of(cell))
            .collect();
        variants.sort_unstable();
        variants.dedup();
        variants
    }

    /// Name of a variant: the letter of its mode, and the FEC setting if the mode has several.
    pub(super) fn label(&self, variant: CellVariant) -> String {
        let letter = variant.mode.letter();
        let variants = self.variants().into_iter();
        let of_mode = variants.filter(|other| other.mode == variant.mode);
        match variant.fec {
            Some(fec) if of_mode.count() > 1 => format!("{letter}, FEC {}", fec.name()),
            _ => letter.to_owned(),
        }
    }

    /// Cells of a variant, in the plan's order.
    pub(super) fn cells_of(&self, variant: CellVariant) -> impl Iterator<Item = &CellResult> {
        let cells = self.cells.iter().copied();
        cells.filter(move |cell| CellVariant::of(cell) == variant)
    }

    /// Delays at which a variant beats the baseline; `None` without figures of both. The second function
    /// tells whether a cell with the second of two figures is ahead of one with the first.
    pub(super) fn turning_point(
        &self,
        variant: CellVariant,
        figure: impl Fn(&CellResult) -> Option<f64>,
        is_ahead: impl Fn(&CellResult, &CellResult) -> bool,
    ) -> Option<TurningPoint> {
        let delay = |cell: &CellResult| cell.cell.figures.one_way_delay;
        let mut compared = Vec::new();
        for own in self.cells_of(variant) {
            let mut others = self.cells.iter();
            let base = others
                .find(|other| other.cell.mode == CellMode::Baseline && delay(other) == delay(own));
            let Some(base) = base else { continue };
            if let (Some(of_base), Some(of_own)) = (figure(base), figure(own))
                && (of_base > 0.0 || of_own > 0.0)
            {
                compared.push(DelayComparison {
                    delay_ms: delay(own).as_secs_f64() * 1e3,
                    log_ratio: (of_own / of_base).ln(),
                    is_ahead: is_ahead(base, own),
                });
            }
        }
        turning_point(compared)
    }
}

impl CellVariant {
    /// Variant of a cell.
    pub(super) fn of(result: &CellResult) -> Self {
        Self {
            mode: result.cell.mode,
            fec: result.cell.fec,
        }
    }
}

impl TurningPoint {
    /// The delays in words, for a place after `beats B`.
    pub(super) fn describe(&self) -> String {
        let range = |from: f64, to: f64| match from == to {
            true => format!("only {to:.0} ms"),
            false => format!("{from:.0} to {to:.0} ms"),
        };
        match self {
            Self::Everywhere(from, to) if from == to => {
                format!("at {to:.0} ms, the only measured delay")
            }
            Self::Everywhere(from, to) => {
                format!("at every measured delay ({})", range(*from, *to))
            }
            Self::Nowhere(from, to) => format!("at no measured delay ({})", range(*from, *to)),
            Self::From(from, to) if from == to => format!("only at {to:.0} ms one way"),
            Self::From(from, to) => format!("from {from:.0} ms to {to:.0} ms one way"),
            Self::FromAbout(from, to) if *from < 0.5 => {
                format!("at every measured delay above 0 ms (up to {to:.0} ms)")
            }
            Self::FromAbout(from, to) => {
                format!("from about {from:.0} ms to {to:.0} ms one way")
            }
            Self::At(ahead, behind) => {
                format!("at {}, but not at {}", delays(ahead), delays(behind))
            }
        }
    }
}

/// Delays in words: `0, 30 and 100 ms`.
fn delays(delays: &[f64]) -> String {
    let texts: Vec<String> = delays.iter().map(|delay| format!("{delay:.0}")).collect();
    match texts.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("{} and {last} ms", others.join(", "))
        }
        _ => format!("{} ms", texts.concat()),
    }
}

/// Finds the delays at which a mode is ahead; comparisons come in any order.
fn turning_point(mut compared: Vec<DelayComparison>) -> Option<TurningPoint> {
    compared.sort_by(|one, two| one.delay_ms.total_cmp(&two.delay_ms));
    let (first, last) = (compared.first()?.delay_ms, compared.last()?.delay_ms);
    let select = |is_ahead: bool| -> Vec<f64> {
        let own = compared.iter().filter(|each| each.is_ahead == is_ahead);
        own.map(|each| each.delay_ms).collect()
    };
    let (ahead, behind) = (select(true), select(false));
    if behind.is_empty() {
        return Some(TurningPoint::Everywhere(first, last));
    }
    if ahead.is_empty() {
        return Some(TurningPoint::Nowhere(first, last));
    }
    // Behind first, then ahead: anything else has no turning point.
    let (low, high) = (
        compared[behind.len() - 1],
        compared[behind.len()..].first()?,
    );
    if ahead[0] <= low.delay_ms {
        return Some(TurningPoint::At(ahead, behind));
    }
    let is_crossing = low.log_ratio <= 0.0 && high.log_ratio > 0.0;
    Some(
        match is_crossing && (high.log_ratio - low.log_ratio).is_finite() {
            true => {
                let share = -low.log_ratio / (high.log_ratio - low.log_ratio);
                let span = high.delay_ms - low.delay_ms;
                TurningPoint::FromAbout(low.delay_ms + span * share, last)
            }
            // The intervals show no difference at the shorter delay, or a transfer failed.
            false => TurningPoint::From(high.delay_ms, last),
        },
    )
}

/// Our median throughput, where there is one.
pub(super) fn own_figure(result: &CellResult) -> Option<f64> {
    let estimate = result
        .throughput
        .filter(|_| result.status == CellStatus::Measured)?;
    Some(estimate.median)
}

/// Our median throughput, where there is one; 0 where the transfer failed.
pub(super) fn own_figure_or_failure(result: &CellResult) -> Option<f64> {
    match result.status {
        CellStatus::Failed => Some(0.0),
        CellStatus::Measured | CellStatus::NotMeasured | CellStatus::NotSimulated => {
            own_figure(result)
        }
    }
}

/// Tells whether our second cell is ahead of the first: by the intervals where there are enough repeats, by
/// the medians where there are not.
pub(super) fn is_ahead(base: &CellResult, own: &CellResult) -> bool {
    let (Some(of_base), Some(of_own)) = (base.throughput, own.throughput) else {
        return false;
    };
    match statistics::compare(&of_base, &of_own) {
        ComparisonVerdict::Higher => true,
        ComparisonVerdict::Lower | ComparisonVerdict::NoDifference => false,
        ComparisonVerdict::NotTested => of_own.median > of_base.median,
    }
}

/// Tells whether the published figure of the second cell is ahead of that of the first.
pub(super) fn is_published_ahead(base: &CellResult, own: &CellResult) -> bool {
    published_figure(own) > published_figure(base)
}

/// The published throughput; 0 where the transfer failed.
pub(super) fn published_figure(result: &CellResult) -> Option<f64> {
    result.published.map(|published| published.kb_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comparisons of these figures: delay, baseline, mode.
    fn compared(values: &[(f64, f64, f64)]) -> Vec<DelayComparison> {
        let compare = |(delay_ms, base, own): &(f64, f64, f64)| DelayComparison {
            delay_ms: *delay_ms,
            log_ratio: (own / base).ln(),
            is_ahead: own > base,
        };
        values.iter().map(compare).collect()
    }

    fn described(values: &[(f64, f64, f64)]) -> String {
        turning_point(compared(values)).unwrap().describe()
    }

    #[test]
    fn turning_points_are_those_of_the_documents() {
        // Table 11: A beats B from around 20 ms, T from around 80 ms.
        for (own, bounds) in [
            ([2008.7, 1373.4, 774.7, 375.4], 10.0..25.0),
            ([1347.6, 357.6, 139.5, 59.7], 60.0..90.0),
        ] {
            let base = [(0.0, 4294.6), (30.0, 425.4), (100.0, 126.1), (250.0, 52.3)];
            let mut values: Vec<(f64, f64, f64)> = base
                .iter()
                .zip(own)
                .map(|((delay, base), own)| (*delay, *base, own))
                .collect();
            let point = turning_point(compared(&values));
            let Some(TurningPoint::FromAbout(delay, 250.0)) = point else {
                panic!("{point:?}");
            };
            assert!(bounds.contains(&delay), "{delay}");
            // The order of a plan's delays does not matter.
            values.reverse();
            assert_eq!(turning_point(compared(&values)), point);
        }
    }

    #[test]
    fn words_name_measured_delays_only() {
        for (values, words) in [
            (&[(20.0, 1.0, 2.0)][..], "at 20 ms, the only measured delay"),
            (&[(20.0, 2.0, 1.0)], "at no measured delay (only 20 ms)"),
            (
                &[(0.0, 1.0, 2.0), (30.0, 1.0, 2.0)],
                "at every measured delay (0 to 30 ms)",
            ),
            (
                &[(0.0, 2.0, 1.0), (30.0, 2.0, 1.0)],
                "at no measured delay (0 to 30 ms)",
            ),
            // The mode is ahead in the middle, so there is no point from which on it is.
            (
                &[
                    (0.0, 2.0, 1.0),
                    (30.0, 1.0, 2.0),
                    (100.0, 1.0, 2.0),
                    (250.0, 2.0, 1.0),
                ],
                "at 30 and 100 ms, but not at 0 and 250 ms",
            ),
            (
                &[(0.0, 1.0, 2.0), (30.0, 2.0, 1.0)],
                "at 0 ms, but not at 30 ms",
            ),
            (
                &[(0.0, 1.0, 1.0), (30.0, 1.0, 2.0)],
                "at every measured delay above 0 ms (up to 30 ms)",
            ),
            // A transfer that failed has no ratio to interpolate with.
            (
                &[(0.0, 1.0, 0.0), (30.0, 1.0, 2.0), (60.0, 0.0, 2.0)],
                "from 30 ms to 60 ms one way",
            ),
        ] {
            assert_eq!(described(values), words);
        }
        assert_eq!(turning_point(Vec::new()), None);
    }

    #[test]
    fn medians_whose_intervals_overlap_are_not_ahead() {
        let mut without = compared(&[(0.0, 1.0, 1.1), (30.0, 1.0, 2.0)]);
        without[0].is_ahead = false;
        let point = turning_point(without).unwrap();
        assert_eq!(point.describe(), "only at 30 ms one way");
    }
}
