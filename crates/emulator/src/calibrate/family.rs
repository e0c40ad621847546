//! Test of whether chance explains the criteria that were missed.
//!
//! A bar that a correct emulator misses once in a thousand times is suitable for one cell. A whole
//! certificate has some fifty of them, so one of twenty certificates of a correct emulator would
//! miss one. So each cell reports the result of its own bars, and the certificate is judged by all
//! of them together, at a level of its own ([`LEVEL`]), half of which goes to each of two
//! questions:
//!
//! - Is any one test further off than chance takes the furthest of so many? (Bonferroni's
//!   inequality, with which Holm's procedure begins; it holds however the tests hang together.)
//! - Are more cells outside than chance puts there? This sees what is slightly wrong everywhere.
//!   (The binomial tail, which is an upper bound where cells differ in their number of tests:
//!   Hoeffding 1956.)
//!
//! A miss of a deterministic bar, such as a median's limit, is never excused.

use super::certificate::{CertificateCell, CertificateVerdict, PassCriterion};
use super::statistics::{CONFIDENCE, at_least_p};

/// Probability that a correct emulator's certificate fails by chance: the same as for one cell's
/// interval.
const LEVEL: f64 = 0.001;

impl CertificateVerdict {
    /// Judges all the cells of a certificate.
    pub(super) fn of(cells: &[CertificateCell]) -> Self {
        let tests_of = |cell: &CertificateCell| tests(cell).count() as u32;
        let tested: Vec<&CertificateCell> =
            cells.iter().filter(|cell| tests_of(cell) > 0).collect();
        let count: u32 = tested.iter().copied().map(tests_of).sum();
        let smallest_p = tested
            .iter()
            .flat_map(|cell| tests(cell))
            .filter_map(|bar| bar.chance_p)
            .fold(1.0, f64::min);
        let missed = tested
            .iter()
            .filter(|cell| tests(cell).any(|bar| !bar.holds))
            .count();
        let cells = tested.len() as f64;
        let misses_share = f64::from(count) * (1.0 - CONFIDENCE) / cells.max(1.0);
        let mut verdict = Self {
            level: LEVEL,
            tests: count,
            smallest_p,
            missed_cells: missed as u32,
            as_many_p: at_least_p(missed as u64, tested.len() as u64, misses_share),
            explains: true,
        };
        verdict.explains =
            smallest_p >= verdict.smallest_p_least() && verdict.as_many_p >= LEVEL / 2.0;
        verdict
    }

    /// The least likely test may be as unlikely as this.
    #[must_use]
    pub fn smallest_p_least(&self) -> f64 {
        self.level / 2.0 / f64::from(self.tests.max(1))
    }

    /// Tells whether every criterion of these cells holds, except for misses that chance explains.
    pub(super) fn all_within(&self, cells: &[CertificateCell]) -> bool {
        let mut certain = cells
            .iter()
            .flat_map(|cell| &cell.bars)
            .filter(|bar| bar.chance_p.is_none());
        self.explains && certain.all(|bar| bar.holds)
    }
}

/// Criteria that can be missed by chance alone.
fn tests(cell: &CertificateCell) -> impl Iterator<Item = &PassCriterion> {
    cell.bars.iter().filter(|bar| bar.chance_p.is_some())
}

#[cfg(test)]
mod tests {
    use vocab::SeededRandom;

    use super::super::certificate::MeasuredQuantity;
    use super::super::statistics::share_p;
    use super::*;

    /// A cell with tests that came out with these.
    fn cell(ps: &[f64]) -> CertificateCell {
        let cell =
            CertificateCell::new(MeasuredQuantity::Loss, (5.0, "percent"), 5.0, [4.9, 5.1], 1);
        ps.iter()
            .fold(cell, |cell, p| cell.must_by_chance("test", *p > LEVEL, *p))
    }

    fn is_within(cells: &[CertificateCell]) -> bool {
        CertificateVerdict::of(cells).all_within(cells)
    }

    /// Cells of a full certificate, of which the first have these p-values.
    fn certificate(first: &[f64]) -> Vec<CertificateCell> {
        let of_one = |at: usize| cell(&[first.get(at).copied().unwrap_or(0.5)]);
        (0..50).map(of_one).collect()
    }

    #[test]
    fn correct_emulator_fails_as_rarely_as_promised() {
        let mut random = SeededRandom::from_seed(23);
        let (mut with_a_miss, mut failed) = (0, 0);
        for _ in 0..20_000 {
            let cells: Vec<CertificateCell> = (0..25)
                .map(|_| cell(&[random.next_f64(), random.next_f64()]))
                .collect();
            with_a_miss += u32::from(cells.iter().any(|cell| !cell.within_bars));
            failed += u32::from(!is_within(&cells));
        }
        // 50 tests at 0.1 %: 4.9 % of certificates have a miss. Four deviations to either side.
        assert!((853..=1_098).contains(&with_a_miss), "{with_a_miss}");
        assert!(failed <= 38, "{failed} of 20,000");
    }

    #[test]
    fn one_or_two_random_misses_are_excused() {
        for ps in [&[0.000_9][..], &[0.000_02], &[0.000_5, 0.000_5]] {
            let cells = certificate(ps);
            assert!(!cells[0].within_bars);
            assert!(is_within(&cells), "{ps:?}");
        }
    }

    #[test]
    fn one_large_or_several_small_misses_are_not() {
        assert!(!is_within(&certificate(&[0.000_009])));
        assert!(!is_within(&certificate(&[0.0])));
        assert!(!is_within(&certificate(&[0.000_5, 0.000_5, 0.000_5])));
        // 5.6 % for 5 %, of 40,000 packets.
        assert!(!is_within(&certificate(&[share_p(2_240, 40_000, 0.05)])));
    }

    #[test]
    fn deterministic_misses_are_never_excused() {
        let mut cells = certificate(&[]);
        assert!(is_within(&cells));
        cells[7] = cell(&[0.5]).must("median at most 50 us over", false);
        assert!(!is_within(&cells));
    }

    #[test]
    fn without_tests_only_the_other_bars_count() {
        let verdict = CertificateVerdict::of(&[]);
        assert_eq!((verdict.tests, verdict.smallest_p), (0, 1.0));
        assert!(verdict.explains);
        let rate = CertificateCell::new(
            MeasuredQuantity::Rate,
            (64.0, "kbit/s"),
            64.0,
            [63.9, 64.1],
            1,
        );
        assert!(is_within(&[rate.clone().must("within 0.02 %", true)]));
        assert!(!is_within(&[rate.must("within 0.02 %", false)]));
    }
}
