//! Published figures for comparison, transcribed from van Helmond and Smeets, "Benefits and
//! tradeoffs of application-specific WAN acceleration" (University of Amsterdam, 2006), tables 10 to
//! 18, and from "Cisco Wide Area Application Services:
//! Optimizing Third-Generation Wireless Networks" (Cisco Systems, 2009), tables 1 to 5.
//!
//! The second ones were measured over a real 3G link (RTT 146 to 156 ms, with loss and a slow uplink), so
//! their seconds are not comparable with ours; the speed-up factors are.

use serde::Serialize;

use crate::cells::{CalibratedQuantity, CellMode, FecSetting, PlannedCell, PublishedEvaluation};

/// Published throughput of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedThroughput {
    /// In kB/s; 0 where the transfer failed. 1,000 or 1,024 bytes: the report does not say.
    pub kb_s: f64,
}

/// Greatest difference of two delays, or two chances of loss, that are the same.
const SAME: f64 = 1e-6;

/// Published throughput of a cell: tables 10 to 15 without loss, 16 to 18 with it.
#[must_use]
pub fn throughput(from: PublishedEvaluation, cell: &PlannedCell) -> Option<PublishedThroughput> {
    if from != PublishedEvaluation::Wx2006 {
        return None;
    }
    let delay = cell.figures.one_way_delay.as_secs_f64() * 1e3;
    let number = |text: &str| text.parse::<f64>().ok();
    let is_row = |row: &[&str], delay_column: usize| {
        row[0] == cell.protocol
            && row[1] == cell.link
            && number(row[delay_column]).is_some_and(|each| (each - delay).abs() < SAME)
    };
    let text = if cell.figures.loss > 0.0 {
        let mut table = rows(include_str!("published/wx_fec.csv"));
        let row = table.find(|row| {
            is_row(row, 2)
                && number(row[4]).is_some_and(|each| (each - cell.figures.loss).abs() < SAME)
        })?;
        match cell.fec? {
            FecSetting::Off => row[5],
            FecSetting::Auto => row[6],
        }
    } else {
        let mut table = rows(include_str!("published/wx_acceleration.csv"));
        let row = table.find(|row| is_row(row, 3))?;
        match cell.mode {
            CellMode::Baseline => row[4],
            CellMode::Transport => row[5],
            CellMode::Application => row[6],
            CellMode::Exchange => row[7],
        }
    };
    number(text).map(|kb_s| PublishedThroughput { kb_s })
}

/// The published goodput of mail without loss at one link and delay, in kB/s (tables 12 to 15).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedMailRate {
    /// `outlook-xp` or `outlook-2003`.
    pub client: &'static str,
    /// `T1` or `OC-1`.
    pub link: String,
    /// Each way.
    pub one_way_delay_ms: u32,
    /// Column B, without acceleration.
    #[serde(rename = "baseline_kB_s")]
    pub baseline_kb_s: f64,
    /// Column T, with TCP acceleration.
    #[serde(rename = "transport_kB_s")]
    pub transport_kb_s: f64,
    /// Column A, with application acceleration.
    #[serde(rename = "application_kB_s")]
    pub application_kb_s: f64,
    /// Column E, with the optimisation of Exchange and Outlook 2003.
    #[serde(rename = "exchange_kB_s")]
    pub exchange_kb_s: Option<f64>,
}

/// The published rates of mail, in the published order.
#[must_use]
pub fn mail_rates() -> Vec<PublishedMailRate> {
    let number = |text: &str| text.parse::<f64>().ok();
    let sure = |text: &str| number(text).expect("the table in the source is numbers");
    rows(include_str!("published/wx_acceleration.csv"))
        .filter_map(|row| {
            let client = match row[0] {
                "MAPI-XP" => "outlook-xp",
                "MAPI-2003" => "outlook-2003",
                _ => return None,
            };
            Some(PublishedMailRate {
                client,
                link: row[1].to_owned(),
                one_way_delay_ms: sure(row[3]) as u32,
                baseline_kb_s: sure(row[4]),
                transport_kb_s: sure(row[5]),
                application_kb_s: sure(row[6]),
                exchange_kb_s: number(row[7]),
            })
        })
        .collect()
}

/// Published measurement of an emulator at one setting (tables 21 to 23): bit/s, milliseconds or a
/// share.
#[must_use]
pub fn calibration(quantity: CalibratedQuantity, configured: f64) -> Option<f64> {
    calibration_rows(quantity).find_map(|row| {
        let is_same = (calibration_value(&row, 1)? - configured).abs() < SAME * configured.max(1.0);
        is_same.then(|| calibration_value(&row, 3)).flatten()
    })
}

fn calibration_rows(quantity: CalibratedQuantity) -> impl Iterator<Item = Vec<&'static str>> {
    let name = match quantity {
        CalibratedQuantity::Bandwidth => "bandwidth",
        CalibratedQuantity::Delay => "delay",
        CalibratedQuantity::Loss => "loss",
    };
    rows(include_str!("published/wx_emulator_calibration.csv")).filter(move |row| row[0] == name)
}

/// Number in a column of a calibration row, in base units.
fn calibration_value(row: &[&str], column: usize) -> Option<f64> {
    let scale = match row[2] {
        "kbit/s" => 1e3,
        "Mbit/s" => 1e6,
        "percent" => 0.01,
        _ => 1.0,
    };
    row[column].parse::<f64>().ok().map(|value| value * scale)
}

/// Published measurement without any setting (table 20), in the same units: of a switch in the emulator's
/// place, or of the emulator. Its network cards carry 100 Mbit/s; the delay is half of its round trip.
#[must_use]
pub fn unconfigured(quantity: CalibratedQuantity, is_without_emulator: bool) -> Option<f64> {
    let configured = if is_without_emulator {
        "switch"
    } else {
        "none"
    };
    calibration_rows(quantity)
        .find(|row| row[1] == configured)
        .and_then(|row| calibration_value(&row, 3))
}

/// A file of the published set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedFile {
    /// Its name, such as `2M.doc`.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The seconds one file took in one published test.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTime {
    /// The file as our set names it.
    pub file: String,
    /// Seconds without acceleration.
    pub baseline_s: f64,
    /// With empty caches.
    pub cold_s: f64,
    /// With warm caches.
    pub warm_s: f64,
}

/// One published test.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTest {
    /// Our workload that repeats it.
    pub workload: &'static str,
    /// Title in the report.
    pub title: &'static str,
    /// Its average round-trip time in milliseconds.
    pub rtt_ms: u32,
    /// Its results.
    pub times: Vec<PublishedTime>,
}

/// The published seconds to open and to save one document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedDocument {
    /// File name as in the report.
    pub file: String,
    /// Its size.
    #[serde(rename = "size_kB")]
    pub size_kb: f64,
    /// Times without acceleration: open, save.
    pub baseline_s: [f64; 2],
    /// With empty caches.
    pub cold_s: [f64; 2],
    /// With warm caches.
    pub warm_s: [f64; 2],
}

/// The documents of the open and save tests, in the published order.
#[must_use]
pub fn documents() -> Vec<PublishedDocument> {
    let number = |text: &str| text.parse().expect("the table in the source is numbers");
    rows(include_str!("published/waas_3g_cifs_open_save.csv"))
        .map(|row| PublishedDocument {
            file: row[0].to_owned(),
            size_kb: number(row[1]),
            baseline_s: [number(row[2]), number(row[3])],
            cold_s: [number(row[4]), number(row[5])],
            warm_s: [number(row[6]), number(row[7])],
        })
        .collect()
}

impl PublishedDocument {
    /// Its size in bytes; the report counts in kilobytes of 1,024 bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.size_kb * 1024.0) as u64
    }
}

/// The published file set, in the published order.
#[must_use]
pub fn files() -> Vec<PublishedFile> {
    rows(include_str!("published/waas_3g_files.csv"))
        .map(|row| PublishedFile {
            name: row[0].to_owned(),
            bytes: row[1].parse().expect("the table in the source is numbers"),
        })
        .collect()
}

/// Title of the published test of opened documents.
pub(super) const OPEN_TITLE: &str = "Test 5, CIFS file open (published: table 5, figure 8)";
/// Title of the published test of saved documents.
pub(super) const SAVE_TITLE: &str = "Test 6, CIFS file save (published: table 5, figure 9)";

/// Title of the published test that a workload of file sets repeats, with the numbers of its table and figure.
pub(super) fn waas_title(workload: &str) -> Option<&'static str> {
    Some(match workload {
        "http-download" => "Test 1, HTTP download (published: table 2, figure 3)",
        "ftp-download" => "Test 2, FTP download (published: table 3, figure 4)",
        "ftp-upload" => "Test 3, FTP upload (published: table 4, figure 5)",
        "smb-download" => "Test 4, CIFS download (published: figure 6, without seconds of files)",
        "smb-upload" => "Test 4, CIFS upload (published: figure 7, without seconds of files)",
        _ => return None,
    })
}

/// The published tests that our workloads repeat.
#[must_use]
pub fn tests() -> Vec<PublishedTest> {
    vec![
        PublishedTest {
            workload: "http-download",
            title: "Test 1, HTTP download",
            rtt_ms: 146,
            times: times(include_str!("published/waas_3g_http_download.csv")),
        },
        PublishedTest {
            workload: "ftp-download",
            title: "Test 2, FTP download",
            rtt_ms: 153,
            times: times(include_str!("published/waas_3g_ftp_download.csv")),
        },
        PublishedTest {
            workload: "ftp-upload",
            title: "Test 3, FTP upload",
            rtt_ms: 156,
            times: times(include_str!("published/waas_3g_ftp_upload.csv")),
        },
    ]
}

fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| line.split(',').collect())
}

fn times(table: &str) -> Vec<PublishedTime> {
    let number = |text: &str| text.parse().expect("the table in the source is numbers");
    rows(table)
        .map(|row| PublishedTime {
            file: our_name(row[0]),
            baseline_s: number(row[1]),
            cold_s: number(row[2]),
            warm_s: number(row[3]),
        })
        .collect()
}

/// Name of our file for a published one: "500-KB Word" is `500K.doc`.
fn our_name(published: &str) -> String {
    let (size, kind) = published.split_once(' ').unwrap_or((published, ""));
    let extension = match kind {
        "Word" => "doc",
        "Excel" => "xls",
        "PowerPoint" => "ppt",
        _ => "zip",
    };
    let size = size
        .replace("5.5-MB", "5M")
        .replace("-KB", "K")
        .replace("-MB", "M");
    format!("{size}.{extension}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_calibration_is_in_base_units() {
        let of = calibration;
        assert_eq!(of(CalibratedQuantity::Bandwidth, 64e3), Some(59_560.0));
        assert_eq!(of(CalibratedQuantity::Delay, 2_000.0), Some(1_999.63));
        let loss = of(CalibratedQuantity::Loss, 0.0005).unwrap();
        assert!((loss - 0.0003).abs() < 1e-9);
        assert_eq!(of(CalibratedQuantity::Loss, 0.02), None);
        let of = unconfigured;
        assert_eq!(of(CalibratedQuantity::Bandwidth, true), Some(94_382_080.0));
        assert_eq!(of(CalibratedQuantity::Delay, false), Some(0.25));
    }

    #[test]
    fn published_mail_rates_have_both_clients() {
        let rates = mail_rates();
        let count = |client| rates.iter().filter(|rate| rate.client == client).count();
        assert_eq!((count("outlook-xp"), count("outlook-2003")), (8, 8));
        let with_exchange = rates.iter().filter(|rate| rate.exchange_kb_s.is_some());
        assert!(
            with_exchange
                .clone()
                .all(|rate| rate.client == "outlook-2003")
        );
        assert_eq!(with_exchange.count(), 8);
    }

    #[test]
    fn every_published_time_names_an_existing_file() {
        let files = files();
        assert_eq!(files.len(), 19);
        let documents = documents();
        assert_eq!(documents.len(), 18);
        for document in documents {
            assert!(files.iter().any(|file| file.name == document.file));
        }
        for test in tests() {
            assert!(!test.times.is_empty());
            for time in &test.times {
                assert!(
                    files.iter().any(|file| file.name == time.file),
                    "{}",
                    time.file
                );
                assert!(time.warm_s <= time.baseline_s);
            }
        }
    }
}
