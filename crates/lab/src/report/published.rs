//! Published figures for comparison, transcribed from "Cisco Wide Area Application Services:
//! Optimizing Third-Generation Wireless Networks" (Cisco Systems, 2009), tables 1 to 4.
//!
//! They were measured over a real 3G link (RTT 146 to 156 ms, with loss and a slow uplink), so
//! their seconds are not comparable with ours; the speed-up factors are.

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
    fn every_published_time_names_an_existing_file() {
        let files = files();
        assert_eq!(files.len(), 19);
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
