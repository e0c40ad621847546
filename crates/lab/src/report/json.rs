//! The result for programs.
//!
//! `{"link": {...}, "rows": [{"workload", "file", "bytes", "baseline_s", ..., "edited_wan_bytes"}]}`
//! with a row per workload and file; a figure that was not measured is `null`. Further keys say
//! how it was measured. A campaign of several tests repeats the link in each row.

use serde_json::{Map, Value, json};
use vocab::{Bitrate, ByteCount, Probability, format_duration};

use super::rows::{DocumentTimes, document_times, rows};
use crate::campaign::{CampaignResults, LabLink, PassKind};
use emulator::link::settings::SettingDirection;

/// The result as one JSON document.
#[must_use]
pub fn json(results: &CampaignResults) -> Value {
    let mut lines = Vec::new();
    for test in &results.tests {
        let documents = document_times(test);
        for row in rows(test) {
            let mut line = Map::new();
            line.insert("workload".to_owned(), json!(row.workload));
            line.insert("file".to_owned(), json!(row.file));
            line.insert("bytes".to_owned(), json!(row.bytes));
            for (suffix, figure) in FIGURES {
                for pass in PassKind::ALL {
                    let value = row.figures.get(&pass).map(figure);
                    line.insert(format!("{}_{suffix}", pass.name()), json!(value));
                }
            }
            let times = |pass| documents.get(&(row.file.clone(), pass));
            if PassKind::ALL.into_iter().any(|pass| times(pass).is_some()) {
                for (name, seconds) in DOCUMENT_TIMES {
                    let mut all = Map::new();
                    for pass in PassKind::ALL {
                        let value = json!(times(pass).map(seconds));
                        line.insert(format!("{}_{name}", pass.name()), value.clone());
                        all.insert(pass.name().to_owned(), value);
                    }
                    line.insert(name.to_owned(), Value::Object(all));
                }
            }
            if let Some(nodes) = &test.nodes {
                line.insert("mode".to_owned(), json!(nodes.mode));
                line.insert("fec".to_owned(), json!(nodes.fec));
            }
            if results.tests.len() > 1 {
                line.insert("link".to_owned(), link_json(&test.link));
            }
            lines.push(Value::Object(line));
        }
    }
    json!({
        "title": results.title,
        "started": results.started,
        "took_s": results.took_s,
        "link": results.tests.first().map(|test| link_json(&test.link)),
        "rows": lines,
        "repeats": results.repeats,
        "seeds": results.seeds,
        "machine": results.machine,
        "notes": results.notes,
        "faults": results.faults(),
    })
}

type SecondsGetter = fn(&DocumentTimes) -> f64;

/// Keys of the times of documents.
const DOCUMENT_TIMES: [(&str, SecondsGetter); 2] = [
    ("open_s", |times| times.open_s),
    ("save_s", |times| times.save_s),
];

type FigureGetter = fn(&super::rows::TransferFigures) -> Value;

/// Keys in the order that readers of the file see them; bytes are whole numbers.
const FIGURES: [(&str, FigureGetter); 3] = [
    ("s", |figures| json!(figures.elapsed_s)),
    ("wan_bytes", |figures| {
        json!(figures.wan_bytes.round() as u64)
    }),
    ("window_s", |figures| json!(figures.window_s)),
];

fn link_json(link: &LabLink) -> Value {
    let way = |way| {
        link.direction(way).map(|direction| {
            json!({
                "rate_bits_per_second": direction.rate.map(Bitrate::bits_per_second),
                "delay_ms": direction.delay.as_secs_f64() * 1000.0,
                "queue_bytes": direction.queue.map(ByteCount::bytes),
                "loss": direction.loss,
            })
        })
    };
    let forward = link.direction(SettingDirection::Forward);
    json!({
        "text": link.to_string(),
        "rate": forward.and_then(|way| way.rate).map(|rate| rate.to_string()),
        "delay": forward.map(|way| format_duration(way.delay)),
        "queue": forward.and_then(|way| way.queue).map(|queue| queue.to_string()),
        "loss": forward
            .and_then(|way| Probability::from_fraction(way.loss?))
            .map(|loss| loss.to_string()),
        "client_to_server": way(SettingDirection::Forward),
        "server_to_client": way(SettingDirection::Back),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::campaign::{CampaignSeeds, FORMAT_VERSION};
    use crate::report::rows::tests::sample_test;
    use host::machine::MachineInfo;

    pub(in crate::report) fn sample_results() -> CampaignResults {
        CampaignResults {
            format_version: FORMAT_VERSION,
            title: "A <test>".to_owned(),
            started: "2026-11-21T12:00:00+00:00".to_owned(),
            took_s: 170.0,
            machine: MachineInfo::default(),
            seeds: CampaignSeeds {
                files: 1,
                edits: 2,
                link: 3,
            },
            repeats: 3,
            passes: PassKind::ALL.to_vec(),
            tests: vec![sample_test()],
            notes: Vec::new(),
        }
    }

    #[test]
    fn rows_have_the_agreed_keys() {
        let document = json(&sample_results());
        let row = &document["rows"][0];
        assert_eq!(row["workload"], "http-download");
        assert_eq!(row["file"], "2M.doc");
        for pass in PassKind::ALL {
            assert!(row[format!("{}_s", pass.name())].is_f64());
            assert!(row[format!("{}_wan_bytes", pass.name())].is_u64());
        }
        assert_eq!(
            document["link"]["client_to_server"]["rate_bits_per_second"],
            10_000_000
        );
    }

    #[test]
    fn unmeasured_value_is_null() {
        let mut results = sample_results();
        results.tests[0]
            .samples
            .retain(|sample| sample.pass == PassKind::Baseline);
        let document = json(&results);
        assert!(document["rows"][0]["warm_s"].is_null());
    }

    #[test]
    fn results_read_back_as_written() {
        let results = sample_results();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        results.write(&path).unwrap();
        assert_eq!(CampaignResults::read(&path).unwrap(), results);
    }
}
