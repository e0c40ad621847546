//! Rows for each file and workload, with figures for each pass.

use std::collections::BTreeMap;

use crate::campaign::{FileSample, PassKind, TestResults};
use host::median::median;

/// Figures of one file, or of all files of a workload, in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferFigures {
    /// Time from the first request for the data to its last acknowledgement, in seconds.
    pub elapsed_s: f64,
    /// The file's part of its session, from its first packet to its last, seconds.
    pub window_s: f64,
    /// Bytes over the WAN, both directions, IP headers included.
    pub wan_bytes: f64,
}

/// Times of a document in one pass, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DocumentTimes {
    /// Time to open it.
    pub open_s: f64,
    /// Time to save it.
    pub save_s: f64,
}

/// One line of the result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultRow {
    /// The workload.
    pub workload: String,
    /// The file; for a sum, how many files.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// The figures by pass; a pass that was not run, or failed, is not there.
    pub figures: BTreeMap<PassKind, TransferFigures>,
}

impl ResultRow {
    /// A figure of a pass relative to the baseline's.
    #[must_use]
    pub fn share(&self, pass: PassKind, figure: impl Fn(&TransferFigures) -> f64) -> Option<f64> {
        let baseline = figure(self.figures.get(&PassKind::Baseline)?);
        (baseline > 0.0).then_some(figure(self.figures.get(&pass)?) / baseline)
    }
}

/// The lines of a test, in the order of its workloads and files: medians over the repeats.
#[must_use]
pub fn rows(test: &TestResults) -> Vec<ResultRow> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for sample in &test.samples {
        let key = (sample.workload.as_str(), sample.measured.file.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let place = |workload: &str| test.runs.iter().position(|run| run.workload == workload);
    keys.sort_by_key(|(workload, _)| place(workload));
    keys.into_iter()
        .map(|(workload, file)| {
            let own: Vec<&FileSample> = test
                .samples
                .iter()
                .filter(|sample| sample.workload == workload && sample.measured.file == file)
                .collect();
            let figures = PassKind::ALL
                .into_iter()
                .filter_map(|pass| {
                    let of_pass: Vec<&&FileSample> =
                        own.iter().filter(|sample| sample.pass == pass).collect();
                    let median_of = |figure: fn(&FileSample) -> f64| {
                        median(of_pass.iter().map(|sample| figure(sample)))
                    };
                    let figures = TransferFigures {
                        elapsed_s: median_of(|sample| sample.measured.elapsed_s)?,
                        window_s: median_of(|sample| sample.measured.window_s)?,
                        wan_bytes: median_of(|sample| sample.measured.wan_bytes as f64)?,
                    };
                    Some((pass, figures))
                })
                .collect();
            ResultRow {
                workload: workload.to_owned(),
                file: file.to_owned(),
                bytes: own.first().map_or(0, |sample| sample.measured.bytes),
                figures,
            }
        })
        .collect()
}

/// Times to open and to save the documents of a test, by file and pass: medians over the repeats.
#[must_use]
pub fn document_times(test: &TestResults) -> BTreeMap<(String, PassKind), DocumentTimes> {
    let mut samples: BTreeMap<(String, PassKind), Vec<[f64; 2]>> = BTreeMap::new();
    for sample in &test.samples {
        if let (Some(open_s), Some(save_s)) = (sample.measured.open_s, sample.measured.save_s) {
            let key = (sample.measured.file.clone(), sample.pass);
            samples.entry(key).or_default().push([open_s, save_s]);
        }
    }
    let median_of = |times: &[[f64; 2]], part: usize| median(times.iter().map(|each| each[part]));
    let times = samples.into_iter().filter_map(|(key, times)| {
        let (open_s, save_s) = (median_of(&times, 0)?, median_of(&times, 1)?);
        Some((key, DocumentTimes { open_s, save_s }))
    });
    times.collect()
}

/// One line per workload: the sums over its files.
#[must_use]
pub fn sums(rows: &[ResultRow]) -> Vec<ResultRow> {
    let mut sums: Vec<(ResultRow, usize)> = Vec::new();
    for row in rows {
        match sums
            .iter_mut()
            .find(|(sum, _)| sum.workload == row.workload)
        {
            None => sums.push((row.clone(), 1)),
            Some((sum, count)) => {
                *count += 1;
                sum.bytes += row.bytes;
                // A pass is summed only if every file has it.
                sum.figures.retain(|pass, _| row.figures.contains_key(pass));
                for (pass, total) in &mut sum.figures {
                    let add = &row.figures[pass];
                    total.elapsed_s += add.elapsed_s;
                    total.window_s += add.window_s;
                    total.wan_bytes += add.wan_bytes;
                }
            }
        }
    }
    sums.into_iter()
        .map(|(mut sum, count)| {
            sum.file = match count {
                1 => "1 file".to_owned(),
                _ => format!("{count} files"),
            };
            sum
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::campaign::{LabLink, WorkloadRun};
    use crate::recording::MeasuredFile;

    /// Two files over HTTP in all passes, three repeats.
    pub(in crate::report) fn sample_test() -> TestResults {
        let mut samples = Vec::new();
        let mut runs = Vec::new();
        for repeat in 1..=3 {
            for (index, pass) in PassKind::ALL.into_iter().enumerate() {
                runs.push(WorkloadRun {
                    pass,
                    workload: "http-download".to_owned(),
                    repeat,
                    label: format!("t0-{}-{repeat}", pass.name()),
                    cpu_busy: 0.2,
                    failure: None,
                });
                for (file, bytes) in [("2M.doc", 2_055_168), ("50K.ppt", 48_640)] {
                    samples.push(FileSample {
                        pass,
                        workload: "http-download".to_owned(),
                        repeat,
                        measured: MeasuredFile {
                            file: file.to_owned(),
                            bytes,
                            requested_unix_s: 1.0,
                            elapsed_s: bytes as f64 / 1e6 / (index + 1) as f64 + f64::from(repeat),
                            window_s: 4.0,
                            wan_bytes: bytes / (index as u64 + 1),
                            expected_hash: "a".to_owned(),
                            found_hash: Some("a".to_owned()),
                            open_s: None,
                            save_s: None,
                        },
                    });
                }
            }
        }
        TestResults {
            link: LabLink::default(),
            nodes: None,
            emulator: serde_json::Value::Null,
            runs,
            samples,
        }
    }

    #[test]
    fn rows_are_medians_and_sums_are_of_rows() {
        let rows = rows(&sample_test());
        assert_eq!(rows.len(), 2);
        let baseline = rows[0].figures[&PassKind::Baseline];
        assert!((baseline.elapsed_s - 4.055_168).abs() < 1e-9);
        let sums = sums(&rows);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[0].file, "2 files");
        assert_eq!(sums[0].bytes, 2_103_808);
        assert!(
            (sums[0]
                .share(PassKind::Cold, |figures| figures.wan_bytes)
                .unwrap()
                - 0.5)
                .abs()
                < 1e-6
        );
    }

    #[test]
    fn pass_with_a_missing_file_has_no_sum() {
        let mut test = sample_test();
        test.samples
            .retain(|sample| !(sample.measured.file == "50K.ppt" && sample.pass == PassKind::Warm));
        let sums = sums(&rows(&test));
        assert!(!sums[0].figures.contains_key(&PassKind::Warm));
        assert!(sums[0].figures.contains_key(&PassKind::Edited));
    }
}
