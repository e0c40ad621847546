//! Captures of one direction only, as from a mirror port, or where the two directions take
//! different paths.
//!
//! Without acknowledgements lost packets cannot be told from those that passed, and every
//! retransmission but the last would seem lost.

use super::super::finding::{DiagnosisCause, DiagnosisFinding};
use super::super::passage::{CapturedDirections, HostStream};

const ADVICE: &str = "Capture both ways of the connections: both directions of a mirror port, no filter by \
                      source or destination, or on one of the two hosts, where all packets meet.";

/// Finding that one direction is missing from the capture, if so.
pub(super) fn one_way(stream: &HostStream) -> Option<DiagnosisFinding> {
    let evidence = match stream.ways {
        CapturedDirections::Both => return None,
        CapturedDirections::DataAlone => format!(
            "the capture holds no acknowledgements of these {} bytes: only one way was captured, and neither \
             losses nor waits show in it",
            stream.payload_bytes
        ),
        CapturedDirections::AcknowledgementsAlone(bytes) => format!(
            "the capture holds acknowledgements of {bytes} bytes and not the data: only one way was captured, \
             and neither losses nor waits show in it"
        ),
    };
    Some(DiagnosisFinding::new(DiagnosisCause::Unknown, 0.95, evidence).advising(ADVICE))
}

#[cfg(test)]
mod tests {
    use super::super::super::segment::TcpSegment;
    use super::super::synthetic::SyntheticTransfer;
    use super::super::{TransferDiagnosis, diagnose_capture};
    use super::*;

    /// Transfers diagnosed from the segments that one of two hosts sent.
    fn said_of(segments: Vec<TcpSegment>, is_sender: bool) -> Vec<TransferDiagnosis> {
        let sender = segments[0].source;
        let kept: Vec<TcpSegment> = segments
            .into_iter()
            .filter(|segment| (segment.source == sender) == is_sender)
            .collect();
        diagnose_capture(&kept)
    }

    /// Only the data that was sent again has a fate that would seem known.
    #[test]
    fn data_alone_is_reported_as_half_a_capture() {
        let mut segments = SyntheticTransfer::default().segments();
        let sent_again: Vec<TcpSegment> = segments
            .iter()
            .filter(|segment| segment.payload_bytes > 0)
            .step_by(20)
            .cloned()
            .collect();
        segments.extend(sent_again);
        let found = said_of(segments, true);
        assert_eq!(found.len(), 1);
        let finding = &found[0].findings[0];
        assert_eq!(found[0].findings.len(), 1, "{finding:?}");
        assert_eq!(finding.cause, DiagnosisCause::Unknown, "{finding:?}");
        assert!(
            finding.evidence[0].contains("no acknowledgements"),
            "{finding:?}"
        );
        assert!(finding.advice().contains("both ways"), "{finding:?}");
    }

    #[test]
    fn acknowledgements_alone_are_half_a_capture_too() {
        let found = said_of(SyntheticTransfer::default().segments(), false);
        assert_eq!(found.len(), 1);
        let finding = &found[0].findings[0];
        assert_eq!(finding.cause, DiagnosisCause::Unknown, "{finding:?}");
        let bytes = "acknowledgements of 2896000 bytes and not the data";
        assert!(finding.evidence[0].contains(bytes), "{finding:?}");
        assert_eq!(found[0].payload.bytes(), 0);
        assert_eq!(found[0].source.to_string(), "192.0.2.1");
    }

    #[test]
    fn a_capture_of_both_ways_is_judged() {
        let found = diagnose_capture(&SyntheticTransfer::default().segments());
        assert_eq!(found.len(), 1);
        assert!(
            found[0].findings[0].cause != DiagnosisCause::Unknown,
            "{:?}",
            found[0]
        );
    }
}
