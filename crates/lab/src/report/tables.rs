//! Tables of a campaign: cells of one protocol over one link, by delay or by chance of loss.

use std::time::Duration;

use crate::cells::{
    CacheState, CampaignOutcome, CellMode, CellResult, CellStatus, PublishedEvaluation,
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

/// Delay from which a mode is better than the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TurningPoint {
    /// At every delay.
    Everywhere,
    /// From this delay on, in milliseconds, interpolated.
    From(f64),
    /// At no delay.
    Nowhere,
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

    /// Modes in the order of the plan.
    pub(super) fn modes(&self) -> Vec<CellMode> {
        let mut modes: Vec<CellMode> = self.cells.iter().map(|cell| cell.cell.mode).collect();
        modes.sort_unstable();
        modes.dedup();
        modes
    }

    /// Points of a mode, delay in ms and figure, of ours or the published ones.
    pub(super) fn points(
        &self,
        mode: CellMode,
        figure: impl Fn(&CellResult) -> Option<f64>,
    ) -> Vec<(f64, f64)> {
        let own = self.cells.iter().filter(|cell| cell.cell.mode == mode);
        own.filter_map(|cell| {
            let delay = cell.cell.figures.one_way_delay.as_secs_f64() * 1e3;
            Some((delay, figure(cell)?))
        })
        .collect()
    }

    /// Delay from which a mode beats the baseline; `None` without figures of both.
    pub(super) fn turning_point(
        &self,
        mode: CellMode,
        figure: impl Fn(&CellResult) -> Option<f64> + Copy,
    ) -> Option<TurningPoint> {
        let baseline = self.points(CellMode::Baseline, figure);
        let ratios: Vec<(f64, f64)> = self
            .points(mode, figure)
            .into_iter()
            .filter_map(|(delay, value)| {
                let (_, base) = baseline.iter().find(|(other, _)| *other == delay)?;
                (*base > 0.0 && value > 0.0).then(|| (delay, (value / base).ln()))
            })
            .collect();
        turning_point(&ratios)
    }
}

/// Finds the delay at which the logarithm of a ratio rises above zero and stays there.
fn turning_point(ratios: &[(f64, f64)]) -> Option<TurningPoint> {
    let (_, last) = ratios.last()?;
    if *last <= 0.0 {
        return Some(TurningPoint::Nowhere);
    }
    let below = ratios.iter().rposition(|(_, ratio)| *ratio <= 0.0);
    let Some(below) = below else {
        return Some(TurningPoint::Everywhere);
    };
    let ((from, low), (to, high)) = (ratios[below], ratios[below + 1]);
    Some(TurningPoint::From(from + (to - from) * -low / (high - low)))
}

/// Our median throughput, where there is one.
pub(super) fn own_figure(result: &CellResult) -> Option<f64> {
    let estimate = result
        .throughput
        .filter(|_| result.status == CellStatus::Measured)?;
    Some(estimate.median)
}

/// The published throughput; 0 where the transfer failed.
pub(super) fn published_figure(result: &CellResult) -> Option<f64> {
    result.published.map(|published| published.kb_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turning_points_are_those_of_the_documents() {
        // Table 11: A beats B from around 20 ms, T from around 80 ms.
        let ratios = |values: [(f64, f64, f64); 4]| -> Vec<(f64, f64)> {
            let ratio = |(delay, base, value): (f64, f64, f64)| (delay, (value / base).ln());
            values.map(ratio).to_vec()
        };
        let application = ratios([
            (0.0, 4294.6, 2008.7),
            (30.0, 425.4, 1373.4),
            (100.0, 126.1, 774.7),
            (250.0, 52.3, 375.4),
        ]);
        let Some(TurningPoint::From(delay)) = turning_point(&application) else {
            panic!("there is a turning point");
        };
        assert!((10.0..25.0).contains(&delay), "{delay}");
        let transport = ratios([
            (0.0, 4294.6, 1347.6),
            (30.0, 425.4, 357.6),
            (100.0, 126.1, 139.5),
            (250.0, 52.3, 59.7),
        ]);
        let Some(TurningPoint::From(delay)) = turning_point(&transport) else {
            panic!("there is a turning point");
        };
        assert!((60.0..90.0).contains(&delay), "{delay}");
        assert_eq!(turning_point(&[(0.0, 0.1)]), Some(TurningPoint::Everywhere));
        assert_eq!(turning_point(&[(0.0, -0.1)]), Some(TurningPoint::Nowhere));
        assert_eq!(turning_point(&[]), None);
    }
}
