//! Round trips of cells, counted against the same cells without delay.
//!
//! A cell over a delay is compared with its *reference*, the same cell without one. A reference that nobody
//! asked for is measured as well, and kept apart from the results.

/// A cell that may have a delay.
pub(crate) trait DelayedCell: Copy + PartialEq {
    /// One-way delay of its link.
    fn one_way_delay_ms(&self) -> u32;

    /// The same cell without delay.
    fn without_delay(&self) -> Self;
}

/// Result of such a cell.
pub(crate) trait DelayedResult: Clone {
    /// Its cell.
    type Cell: DelayedCell;

    /// The cell.
    fn cell(&self) -> &Self::Cell;

    /// Counts round trips against the same cell without delay.
    fn count_round_trips(&mut self, without_delay: &Self);
}

/// References of these cells that are not among all asked ones, each once.
pub(crate) fn missing<'a, Cell: DelayedCell + 'a>(
    cells: impl Iterator<Item = &'a Cell>,
    asked: &[Cell],
) -> Vec<Cell> {
    let mut references: Vec<Cell> = Vec::new();
    for cell in cells {
        let reference = cell.without_delay();
        if !asked.contains(&reference) && !references.contains(&reference) {
            references.push(reference);
        }
    }
    references
}

/// Puts results into the order in which their cells were asked for.
pub(crate) fn sort_as_asked<Of: DelayedResult>(results: &mut [Of], asked: &[Of::Cell]) {
    results.sort_by_key(|result| asked.iter().position(|each| each == result.cell()));
}

/// Results without delay among these and the references.
pub(crate) fn without_delay<Of: DelayedResult>(results: &[Of], references: &[Of]) -> Vec<Of> {
    let all = results.iter().chain(references);
    all.filter(|result| result.cell().one_way_delay_ms() == 0)
        .cloned()
        .collect()
}

/// Counts the round trips of a result, if its reference is there.
pub(crate) fn compare<Of: DelayedResult>(result: &mut Of, without_delay: &[Of]) {
    let same = result.cell().without_delay();
    if let Some(reference) = without_delay.iter().find(|other| *other.cell() == same) {
        result.count_round_trips(reference);
    }
}
