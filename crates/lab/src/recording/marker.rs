//! Packet that marks a begin or an end in a capture.

/// The discard port (RFC 863), where the server's end of a marker is.
pub(super) const PORT: u16 = 9;

/// Prefix of all markers.
const PREFIX: &str = "trunkline-lab";

/// End of a workload at which a marker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerEdge {
    /// Before its first packet.
    Begin,
    /// After its last packet.
    End,
}

/// A marker's meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadMarker {
    /// End of the workload.
    pub edge: MarkerEdge,
    /// The workload's label: pass, workload and repeat, without spaces.
    pub label: String,
}

impl WorkloadMarker {
    /// The UDP payload: `trunkline-lab begin cold-http-download-1`, with a stop so that no label is
    /// the start of another.
    #[must_use]
    pub fn payload(&self) -> String {
        let edge = match self.edge {
            MarkerEdge::Begin => "begin",
            MarkerEdge::End => "end",
        };
        format!("{PREFIX} {edge} {}.", self.label)
    }

    /// Parses a payload; `None` when it is no marker.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let mut words = text.strip_suffix('.')?.split(' ');
        if words.next()? != PREFIX {
            return None;
        }
        let edge = match words.next()? {
            "begin" => MarkerEdge::Begin,
            "end" => MarkerEdge::End,
            _ => return None,
        };
        let label = words.next()?.to_owned();
        words.next().is_none().then_some(Self { edge, label })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_reads_back() {
        let marker = WorkloadMarker {
            edge: MarkerEdge::End,
            label: "cold-http-download-1".to_owned(),
        };
        assert_eq!(
            WorkloadMarker::parse(marker.payload().as_bytes()),
            Some(marker)
        );
        assert_eq!(WorkloadMarker::parse(b"trunkline-lab end x"), None);
        assert_eq!(WorkloadMarker::parse(b"\xff"), None);
    }
}
