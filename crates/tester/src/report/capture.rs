//! Terminal report on the transfers of a capture: the verdict first, then each transfer.

use std::fmt::Write;

use measure::diagnosis::{DiagnosisCause, TransferDiagnosis};

use super::text::{fold, write_finding};

/// Transfers shown where not all are wanted; those with most payload come first.
const MOST_SHOWN: usize = 12;
/// Payload below which a transfer is too short for a diagnosis: sixty full-size Ethernet packets.
const FEW_BYTES: u64 = 60 * 1_448;

/// The report on a capture's transfers: those of a few packets in one line, unless `all` are wanted.
#[must_use]
pub fn transfers_text(transfers: &[TransferDiagnosis], all: bool) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_transfers(&mut out, transfers, all);
    out
}

fn write_transfers(
    out: &mut String,
    transfers: &[TransferDiagnosis],
    all: bool,
) -> std::fmt::Result {
    let Some(first) = transfers.first() else {
        return Ok(());
    };
    fold(out, "", 2, &headline(first))?;
    let is_shown = |(place, transfer): &(usize, &TransferDiagnosis)| {
        all || *place == 0 || (*place < MOST_SHOWN && !is_short(transfer))
    };
    let (shown, hidden): (Vec<_>, Vec<_>) = transfers.iter().enumerate().partition(is_shown);
    for (_, transfer) in shown {
        writeln!(out)?;
        write_transfer(out, transfer)?;
    }
    let payload: u64 = hidden
        .iter()
        .map(|(_, transfer)| transfer.payload.bytes() + transfer.left_out.bytes())
        .sum();
    match hidden.len() {
        0 => Ok(()),
        1 => writeln!(
            out,
            "\none smaller transfer, {payload} bytes, is not shown; --all shows it"
        ),
        count => writeln!(
            out,
            "\n{count} smaller transfers, {payload} bytes in all, are not shown; --all shows them"
        ),
    }
}

/// Tells whether a transfer has too few packets for a diagnosis.
fn is_short(transfer: &TransferDiagnosis) -> bool {
    let is_unknown = transfer
        .findings
        .iter()
        .all(|finding| finding.cause == DiagnosisCause::Unknown);
    let payload = transfer.payload.bytes();
    is_unknown && (1..FEW_BYTES).contains(&payload) && transfer.left_out.bytes() == 0
}

fn headline(transfer: &TransferDiagnosis) -> String {
    let causes: Vec<DiagnosisCause> = transfer
        .findings
        .iter()
        .map(|finding| finding.cause)
        .collect();
    let found = match causes[..] {
        [DiagnosisCause::None] => "NOTHING LIMITED IT".to_owned(),
        [DiagnosisCause::Unknown] => "CANNOT TELL".to_owned(),
        _ => {
            let names: Vec<&str> = causes.iter().map(|cause| cause.name()).collect();
            format!("FOUND: {}", names.join(", "))
        }
    };
    let rate = rate(transfer).map_or(String::new(), |rate| format!(" at {rate} of payload"));
    format!(
        "{found}; {} > {}{rate}",
        transfer.source, transfer.destination
    )
}

fn rate(transfer: &TransferDiagnosis) -> Option<String> {
    let seconds = transfer.duration.as_secs_f64();
    let bits = transfer.payload.bytes() as f64 * 8.0;
    (seconds > 0.0 && bits > 0.0).then(|| format!("{:.3} Mbit/s", bits / seconds / 1e6))
}

fn write_transfer(out: &mut String, transfer: &TransferDiagnosis) -> std::fmt::Result {
    let connections = match transfer.connections {
        1 => "1 connection".to_owned(),
        count => format!("{count} connections"),
    };
    let rtt = transfer.least_rtt.map_or("unknown".to_owned(), |rtt| {
        format!("{:.3} ms", rtt.as_secs_f64() * 1e3)
    });
    let head = format!("{} > {}: ", transfer.source, transfer.destination);
    let text = match transfer.payload.bytes() {
        0 => format!("no data over {connections}"),
        payload => format!(
            "{payload} bytes of payload in {:.3} s over {connections}, captured at the {}, least RTT {rtt}",
            transfer.duration.as_secs_f64(),
            transfer.place.name()
        ),
    };
    fold(out, &head, 2, &text)?;
    if transfer.begun_before > 0 {
        let text = format!(
            "{} began before the capture, so their windows and their first burst are unknown",
            transfer.begun_before
        );
        fold(out, "  ", 2, &text)?;
    }
    if transfer.left_out.bytes() > 0 {
        let text = format!(
            "{} more bytes were omitted, because the number of diagnosed packets is limited",
            transfer.left_out.bytes()
        );
        fold(out, "  ", 2, &text)?;
    }
    for finding in &transfer.findings {
        write_finding(out, "  ", 4, finding)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use measure::diagnosis::{CapturePlace, CauseParameters, DiagnosisFinding};
    use vocab::{Bitrate, ByteCount};

    use super::*;

    fn finding(cause: DiagnosisCause) -> DiagnosisFinding {
        DiagnosisFinding {
            cause,
            confidence: 0.9,
            evidence: vec!["words ".repeat(40)],
            parameters: CauseParameters::default(),
            instead: None,
        }
    }

    fn transfer(payload: u64, finding: DiagnosisFinding) -> TransferDiagnosis {
        TransferDiagnosis {
            source: "192.0.2.1".parse().expect("an address"),
            destination: "192.0.2.2".parse().expect("an address"),
            connections: 2,
            begun_before: 1,
            payload: ByteCount::new(payload),
            left_out: ByteCount::new(0),
            duration: Duration::from_secs(8),
            place: CapturePlace::Sender,
            least_rtt: Some(Duration::from_micros(20_050)),
            findings: vec![finding],
        }
    }

    #[test]
    fn the_verdict_comes_first_and_numbers_have_units() {
        let mut policer = finding(DiagnosisCause::Policer);
        policer.parameters = CauseParameters {
            rate: Some(Bitrate::from_bits_per_second(9_998_810)),
            burst: Some(ByteCount::new(1_311_105)),
            ..CauseParameters::default()
        };
        let text = transfers_text(&[transfer(12_345_678, policer)], false);
        let first = "FOUND: policer; 192.0.2.1 > 192.0.2.2 at 12.346 Mbit/s of payload\n";
        assert!(text.starts_with(first), "{text}");
        let numbers = "policer, confidence 0.90: rate 9.999 Mbit/s, burst 1311105 B";
        assert!(text.contains(numbers), "{text}");
        assert!(text.contains("    next: Shape to the policed"), "{text}");
        assert!(text.contains("least RTT 20.050 ms"), "{text}");
        assert!(!text.contains("rate_bit_s"), "{text}");
        let is_narrow = |line: &str| line.chars().count() <= 80;
        assert!(text.lines().all(is_narrow), "{text}");
    }

    #[test]
    fn transfers_of_a_few_packets_are_one_line() {
        let mut all = vec![transfer(12_345_678, finding(DiagnosisCause::None))];
        all.extend([400, 37, 4].map(|bytes| transfer(bytes, finding(DiagnosisCause::Unknown))));
        let text = transfers_text(&all, false);
        assert!(text.starts_with("NOTHING LIMITED IT; 192.0.2.1"), "{text}");
        let others = "3 smaller transfers, 441 bytes in all, are not shown; --all shows them\n";
        assert!(text.ends_with(others), "{text}");
        assert_eq!(text.matches("unknown, confidence").count(), 0, "{text}");
        let whole = transfers_text(&all, true);
        assert_eq!(whole.matches("unknown, confidence").count(), 3, "{whole}");
        // The only ones there are.
        let text = transfers_text(&all[1..], false);
        assert!(text.starts_with("CANNOT TELL"), "{text}");
        assert_eq!(text.matches("unknown, confidence").count(), 1, "{text}");
    }
}
