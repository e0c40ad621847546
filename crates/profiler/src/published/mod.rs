//! Figures of R. Chertov, S. Fahmy and N. B. Shroff, "A Black-box Router Profiler" (2007), tables I to
//! III, beside those of a measurement; and the differences of the device from a single output queue.
//!
//! A single FIFO output queue is a line behind a constant delay. One flow of constant rate below the
//! line's leaves it empty: all its packets take the same time, at any rate, and lose nothing. So each
//! difference is seen in the figures of the published experiments themselves, beyond the noise of the
//! cable.

use std::fmt::Write;

use host::terminal::write_hanging;
use profile::MeasurementSubject;
use serde_json::{Value, json};

use crate::measurement::{MeasurementCell, MeasurementResult};

/// Delays of tables I and II.
const DELAYS: &str = include_str!("bbp_router_profile.csv");
/// Loss ratios of table III.
const TCP_LOSS: &str = include_str!("bbp_tcp_loss.csv");
/// The authors' device.
const DEVICE: &str = "Cisco 3660";
/// Difference below which delays are equal, beside the cable's own spread: that of stamps in
/// microseconds.
const SEEN_NS: f64 = 1_000.0;

/// A row of tables I and II.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PublishedDelay {
    size: u64,
    subject: MeasurementSubject,
    rate: f64,
    mean_ns: Option<f64>,
    p5_ns: Option<f64>,
    p95_ns: Option<f64>,
}

fn delays() -> impl Iterator<Item = PublishedDelay> {
    DELAYS.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let [flow, path, rate, mean, p5, p95] = fields.as_slice() else {
            return None;
        };
        let number = |text: &&str| text.parse::<f64>().ok();
        Some(PublishedDelay {
            size: flow
                .trim_start_matches("UDP-")
                .trim_end_matches('B')
                .parse()
                .ok()?,
            subject: if *path == DEVICE {
                MeasurementSubject::Device
            } else {
                MeasurementSubject::Cable
            },
            rate: number(rate)?,
            mean_ns: number(mean),
            p5_ns: number(p5),
            p95_ns: number(p95),
        })
    })
}

fn published(cell: &MeasurementCell) -> Option<PublishedDelay> {
    let (size, rate) = (cell.size?, cell.planned_pps?);
    delays().find(|row| {
        row.size == size && row.subject == cell.subject && (row.rate - rate).abs() < 0.5
    })
}

/// Loss ratios of table III: path, TCP of the authors, ratio.
fn tcp_losses() -> impl Iterator<Item = (&'static str, &'static str, f64)> {
    TCP_LOSS.lines().skip(1).filter_map(|line| {
        let mut fields = line.split(',');
        Some((fields.next()?, fields.next()?, fields.next()?.parse().ok()?))
    })
}

/// Writes the published figures beside those of the measurement, if it has such experiments.
pub(crate) fn write_text(out: &mut String, result: &MeasurementResult) {
    let rows: Vec<(&MeasurementCell, PublishedDelay)> = result
        .cells
        .iter()
        .filter_map(|cell| Some((cell, published(cell)?)))
        .collect();
    if !rows.is_empty() {
        out.push('\n');
        write_hanging(out, "", 0, DELAY_HEADING.split_whitespace());
        let _ = writeln!(
            out,
            "{:>5} {:>6} {:<6} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8}",
            "bytes", "pps", "path", "p5 then", "now", "mean then", "now", "p95 then", "now"
        );
    }
    for (cell, then) in rows {
        let now = cell.delays.figures();
        let micros = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{:.2}", value / 1e3))
        };
        let _ = writeln!(
            out,
            "{:>5} {:>6} {:<6} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8}",
            then.size,
            then.rate,
            match then.subject {
                MeasurementSubject::Cable => "cable",
                MeasurementSubject::Device => "device",
            },
            micros(then.p5_ns),
            micros(now.map(|now| f64::from(now.p5_ns))),
            micros(then.mean_ns),
            micros(now.map(|now| now.mean_ns)),
            micros(then.p95_ns),
            micros(now.map(|now| f64::from(now.p95_ns))),
        );
    }
    for cell in result.cells.iter().filter(|cell| is_tcp_cell(cell)) {
        out.push('\n');
        write_hanging(out, "", 0, tcp_sentence(cell).split_whitespace());
    }
    let differences = differences(result);
    if !differences.is_empty() {
        *out += "\ndifferences from a single output queue:\n";
    }
    for sentence in differences {
        write_hanging(out, "- ", 2, sentence.split_whitespace());
    }
}

const DELAY_HEADING: &str = "Delays in us beside tables I and II of R. Chertov, S. Fahmy, N. B. Shroff, \"A \
    Black-box Router Profiler\" (2007): a cross-over cable and a Cisco 3660. \"-\" was not published or not \
    measured.";

fn is_tcp_cell(cell: &MeasurementCell) -> bool {
    cell.has_tcp && cell.valid_runs > 0
}

fn tcp_sentence(cell: &MeasurementCell) -> String {
    let path = match cell.subject {
        MeasurementSubject::Cable => "cross-over",
        MeasurementSubject::Device => DEVICE,
    };
    let then: Vec<String> = tcp_losses()
        .filter(|(published, ..)| *published == path)
        .map(|(_, tcp, ratio)| format!("{ratio} with {tcp}"))
        .collect();
    format!(
        "{}: {} of {} packets of TCP were lost, a ratio of {:.7}. Table III has {} ({path}).",
        cell.experiment,
        cell.summary.lost,
        cell.summary.sent,
        cell.summary.loss_ratio(),
        then.join(" and "),
    )
}

/// A device's cell of constant rate with the figures of both paths.
struct ConstantCell<'a> {
    cell: &'a MeasurementCell,
    size: u64,
    rate: f64,
    /// Mean delay without the cable's.
    mean_ns: f64,
    /// 95th less 5th percentile.
    spread_ns: f64,
    cable_spread_ns: f64,
}

fn constant_cells(result: &MeasurementResult) -> Vec<ConstantCell<'_>> {
    result
        .cells
        .iter()
        .filter(|cell| cell.subject == MeasurementSubject::Device)
        .filter_map(|cell| {
            let (size, rate) = (cell.size?, cell.planned_pps?);
            let cable = result.cable_of(cell)?.delays.figures()?;
            let device = cell.delays.figures()?;
            Some(ConstantCell {
                cell,
                size,
                rate,
                mean_ns: device.mean_ns - cable.mean_ns,
                spread_ns: f64::from(device.p95_ns) - f64::from(device.p5_ns),
                cable_spread_ns: f64::from(cable.p95_ns) - f64::from(cable.p5_ns),
            })
        })
        .collect()
}

/// Sentences about what a single output queue does not explain.
fn differences(result: &MeasurementResult) -> Vec<String> {
    let cells = constant_cells(result);
    if cells.is_empty() {
        return Vec::new();
    }
    let sentences: Vec<String> = [
        spread_sentence(&cells),
        rate_sentence(&cells),
        size_sentence(&cells),
        loss_sentence(&cells),
    ]
    .into_iter()
    .flatten()
    .collect();
    match sentences.is_empty() {
        true => vec![
            "None beyond the noise of the cable: all packets of a size take the same time at every \
             rate, and none is lost."
                .to_owned(),
        ],
        false => sentences,
    }
}

fn spread_sentence(cells: &[ConstantCell<'_>]) -> Option<String> {
    let extra = |cell: &ConstantCell<'_>| cell.spread_ns - cell.cable_spread_ns;
    let seen: Vec<&ConstantCell<'_>> = cells
        .iter()
        .filter(|cell| extra(cell) > SEEN_NS.max(cell.cable_spread_ns))
        .collect();
    let widest = seen
        .iter()
        .max_by(|one, other| extra(one).total_cmp(&extra(other)))?;
    Some(format!(
        "Delays vary though nothing can queue: with {} bytes at {} packets/s, the 5th and the 95th \
         percentile are {:.1} us apart, over the cable {:.1} us ({} of {} experiments show it). One \
         flow of constant rate leaves an output queue empty, so all its packets would take the same \
         time. The time of processing varies in the device.",
        widest.size,
        widest.rate,
        widest.spread_ns / 1e3,
        widest.cable_spread_ns / 1e3,
        seen.len(),
        cells.len(),
    ))
}

fn rate_sentence(cells: &[ConstantCell<'_>]) -> Option<String> {
    let change =
        |(slow, fast): &(&ConstantCell<'_>, &ConstantCell<'_>)| (fast.mean_ns - slow.mean_ns).abs();
    let pairs = cells.iter().flat_map(|slow| {
        cells
            .iter()
            .filter(|fast| fast.size == slow.size && fast.rate > slow.rate)
            .map(move |fast| (slow, fast))
    });
    let (slow, fast) = pairs
        .filter(|pair| {
            let noise = pair.0.cable_spread_ns.max(pair.1.cable_spread_ns);
            change(pair) > SEEN_NS.max(noise)
        })
        .max_by(|one, other| change(one).total_cmp(&change(other)))?;
    Some(format!(
        "The mean delay depends on the rate: packets of {} bytes take {:.1} us at {} packets/s and \
         {:.1} us at {} packets/s, without the cable. Below the rate of its line, an output queue takes \
         the same time at every rate. {}",
        slow.size,
        slow.mean_ns / 1e3,
        slow.rate,
        fast.mean_ns / 1e3,
        fast.rate,
        if fast.mean_ns > slow.mean_ns {
            "Packets wait for something that the device shares or does in turns."
        } else {
            "The device works through more packets at once, or wakes up from idle at low rates."
        }
    ))
}

/// The time that the size does not explain, at the lowest rate of each size.
fn size_sentence(cells: &[ConstantCell<'_>]) -> Option<String> {
    let lowest = cells.iter().map(|cell| cell.rate).min_by(f64::total_cmp)?;
    let at_lowest = || cells.iter().filter(|cell| cell.rate <= lowest);
    let small = at_lowest().min_by_key(|cell| cell.size)?;
    let large = at_lowest().max_by_key(|cell| cell.size)?;
    if large.size == small.size {
        return None;
    }
    let slope = (large.mean_ns - small.mean_ns) / (large.size - small.size) as f64;
    let fixed = small.mean_ns - slope * small.size as f64;
    if fixed <= SEEN_NS {
        return None;
    }
    let line = if slope > 0.0 {
        format!(
            "each byte takes {slope:.2} ns, as on a line of {:.0} Mbit/s",
            8e3 / slope
        )
    } else {
        "longer packets do not take longer, so no line of a visible rate sends them".to_owned()
    };
    Some(format!(
        "A packet takes {:.1} us beside its bytes: at {lowest} packets/s, {line}, and the rest is \
         processing that does not depend on the size. An output queue has none.",
        fixed / 1e3
    ))
}

fn loss_sentence(cells: &[ConstantCell<'_>]) -> Option<String> {
    let lossy = cells
        .iter()
        // Losses of our own ports that no record names look like the device's.
        .filter(|cell| cell.cell.summary.lost as f64 > cell.cell.own_losses)
        .max_by(|one, other| {
            let loss = |cell: &ConstantCell<'_>| cell.cell.summary.loss_ratio();
            loss(one).total_cmp(&loss(other))
        })?;
    Some(format!(
        "Packets are lost at a constant rate: {:.4} % of those with {} bytes at {} packets/s. An output \
         queue drops only while it is full, and then delays all packets by its length.",
        lossy.cell.summary.loss_ratio() * 100.0,
        lossy.size,
        lossy.rate,
    ))
}

/// The same as JSON.
pub(crate) fn document(result: &MeasurementResult) -> Value {
    let delays: Vec<Value> = result
        .cells
        .iter()
        .filter_map(|cell| {
            let then = published(cell)?;
            Some(json!({
                "experiment": cell.experiment,
                "subject": cell.subject,
                "size_bytes": then.size,
                "rate_pps": then.rate,
                "published_p5_ns": then.p5_ns,
                "published_mean_ns": then.mean_ns,
                "published_p95_ns": then.p95_ns,
                "delay": cell.delays.figures(),
            }))
        })
        .collect();
    let tcp: Vec<Value> = result
        .cells
        .iter()
        .filter(|cell| is_tcp_cell(cell))
        .map(|cell| {
            json!({
                "experiment": cell.experiment,
                "subject": cell.subject,
                "loss_ratio": cell.summary.loss_ratio(),
            })
        })
        .collect();
    let published_losses: Vec<Value> = tcp_losses()
        .map(|(path, tcp, ratio)| json!({"path": path, "tcp": tcp, "loss_ratio": ratio}))
        .collect();
    json!({
        "source": "R. Chertov, S. Fahmy, N. B. Shroff, A Black-box Router Profiler (2007), tables I to III",
        "delays": delays,
        "tcp_loss": tcp,
        "published_tcp_loss": published_losses,
        "differences_from_output_queue": differences(result),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use profile::TrafficSummary;

    use super::*;
    use crate::figures::DelaySamples;

    fn cell(
        subject: MeasurementSubject,
        size: u64,
        rate: f64,
        delays: [u64; 2],
    ) -> MeasurementCell {
        let mut samples = DelaySamples::default();
        for delay in delays {
            samples.add(Duration::from_nanos(delay));
        }
        MeasurementCell {
            experiment: format!("udp-{size}-{rate}"),
            size: Some(size),
            planned_pps: Some(rate),
            has_tcp: false,
            subject,
            valid_runs: 1,
            void_runs: 0,
            summary: TrafficSummary::default(),
            own_losses: 0.0,
            packets: 2,
            delays: samples,
            sent_pps: rate,
            received_pps: rate,
        }
    }

    fn result(device: [(u64, f64, [u64; 2]); 3]) -> MeasurementResult {
        let cable =
            device.map(|(size, rate, _)| cell(MeasurementSubject::Cable, size, rate, [500, 900]));
        let device =
            device.map(|(size, rate, delays)| cell(MeasurementSubject::Device, size, rate, delays));
        MeasurementResult {
            plan: "bbp".to_owned(),
            runs: Vec::new(),
            planned_runs: 0,
            cells: cable.into_iter().chain(device).collect(),
            records: None,
            notes: Vec::new(),
            failure: None,
        }
    }

    #[test]
    fn every_published_row_is_read() {
        assert_eq!(delays().count(), 16);
        assert_eq!(tcp_losses().count(), 4);
        let fast = cell(MeasurementSubject::Cable, 92, 70_000.0, [1, 2]);
        assert_eq!(published(&fast).unwrap().p95_ns, Some(168_000.0));
        let large = cell(MeasurementSubject::Device, 1_400, 8_000.0, [1, 2]);
        assert_eq!(published(&large).unwrap().mean_ns, Some(341_869.0));
    }

    #[test]
    fn tables_have_both_figures_within_the_width() {
        let result = result([
            (92, 500.0, [60_000, 90_000]),
            (92, 70_000.0, [20_000, 21_000]),
            (1_400, 500.0, [100_000, 130_000]),
        ]);
        let mut text = String::new();
        write_text(&mut text, &result);
        assert!(text.contains("228.00"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(document(&result)["delays"].as_array().unwrap().len(), 6);
    }

    #[test]
    fn page_shows_published_figures_and_differences() {
        let result = result([
            (92, 500.0, [60_000, 90_000]),
            (92, 70_000.0, [20_000, 21_000]),
            (1_400, 500.0, [100_000, 130_000]),
        ]);
        let page = crate::page::measurement_html(&result).unwrap();
        for part in ["<td>228.00</td>", "<td>21.00</td>", "beside its bytes"] {
            assert!(page.contains(part), "{page}");
        }
        // The plan has no TCP.
        assert!(!page.contains("Loss of the TCP"), "{page}");
    }

    #[test]
    fn own_losses_are_not_named_as_the_device_s() {
        let line = |size: u64| [500 + size * 80, 900 + size * 80];
        let mut measured = result([
            (92, 500.0, line(92)),
            (92, 70_000.0, line(92)),
            (1_400, 500.0, line(1_400)),
        ]);
        let cell = measured.cells.last_mut().unwrap();
        cell.summary.sent = 100_000;
        cell.summary.lost = 9;
        cell.own_losses = 9.0;
        let sentences = differences(&measured).join("\n");
        assert!(!sentences.contains("Packets are lost"), "{sentences}");
        measured.cells.last_mut().unwrap().summary.lost = 10;
        let sentences = differences(&measured).join("\n");
        assert!(sentences.contains("Packets are lost"), "{sentences}");
    }

    #[test]
    fn differences_are_named_beyond_the_noise() {
        let varying = result([
            (92, 500.0, [60_000, 90_000]),
            (92, 70_000.0, [20_000, 21_000]),
            (1_400, 500.0, [100_000, 130_000]),
        ]);
        let sentences = differences(&varying).join("\n");
        for part in ["vary", "depends on the rate", "beside its bytes"] {
            assert!(sentences.contains(part), "{sentences}");
        }
        // A line of 100 Mbit/s alone: 80 ns for each byte, at every rate.
        let line = |size: u64| [500 + size * 80, 900 + size * 80];
        let queue = result([
            (92, 500.0, line(92)),
            (92, 70_000.0, line(92)),
            (1_400, 500.0, line(1_400)),
        ]);
        let sentences = differences(&queue);
        assert_eq!(sentences.len(), 1);
        assert!(sentences[0].starts_with("None"), "{sentences:?}");
    }
}
