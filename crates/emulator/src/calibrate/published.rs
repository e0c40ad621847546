//! Published calibration for comparison, transcribed from the 2006 evaluation of the Juniper WX,
//! section on the calibration of its link emulator.

use super::certificate::{CertificateCell, MeasuredQuantity};

const TABLE: &str = include_str!("published/wx_emulator_calibration.csv");

/// Published result for one setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PublishedResult {
    quantity: String,
    configured: f64,
    unit: String,
    /// Measured value, in the setting's unit.
    pub(super) measured: f64,
}

impl PublishedResult {
    /// Error in percent of the setting; absent where the setting is 0.
    pub(super) fn error_percent(&self) -> Option<f64> {
        (self.configured != 0.0)
            .then(|| (self.measured - self.configured) / self.configured * 100.0)
    }
}

fn rows() -> impl Iterator<Item = PublishedResult> {
    let number = |text: &str| text.parse().expect("the table in the source is numbers");
    TABLE
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|row| row.len() == 5)
        .map(move |row| PublishedResult {
            quantity: row[0].to_owned(),
            configured: number(row[1]),
            unit: row[2].to_owned(),
            measured: number(row[3]),
        })
}

/// Published result for this cell's setting, if there is one; its losses were random.
pub(super) fn beside(cell: &CertificateCell) -> Option<PublishedResult> {
    let quantity = match cell.quantity {
        MeasuredQuantity::Rate => "bandwidth",
        MeasuredQuantity::Delay => "delay",
        MeasuredQuantity::Loss if cell.condition == "random" => "loss",
        MeasuredQuantity::Loss
        | MeasuredQuantity::Jitter
        | MeasuredQuantity::Burst
        | MeasuredQuantity::Queue
        | MeasuredQuantity::Seeds => {
            return None;
        }
    };
    rows().find(|row| {
        row.quantity == quantity
            && row.unit == cell.unit
            && (row.configured - cell.configured).abs() < 1e-9
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(quantity: MeasuredQuantity, configured: f64, unit: &str) -> CertificateCell {
        CertificateCell::new(quantity, (configured, unit), 1.0, [0.0, 2.0], 1)
    }

    #[test]
    fn the_whole_table_is_read() {
        assert_eq!(rows().count(), 19);
    }

    #[test]
    fn cells_find_their_published_twin() {
        let rate = beside(&cell(MeasuredQuantity::Rate, 51.84, "Mbit/s")).unwrap();
        assert!((rate.measured - 49.112).abs() < 1e-9);
        assert!((rate.error_percent().unwrap() + 5.262).abs() < 1e-2);
        let none = beside(&cell(MeasuredQuantity::Delay, 0.0, "ms")).unwrap();
        assert_eq!(none.error_percent(), None);
        let loss = cell(MeasuredQuantity::Loss, 0.05, "percent");
        assert_eq!(beside(&loss), None);
        assert!(beside(&loss.under("random")).is_some());
        assert_eq!(
            beside(&cell(MeasuredQuantity::Rate, 155.52, "Mbit/s")),
            None
        );
    }
}
