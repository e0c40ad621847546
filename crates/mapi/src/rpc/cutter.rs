//! Separates stubs from the bytes around them while the bytes pass, without holding any back.
//!
//! The near half uses it as long as the far half may let go: what a half holds then would be lost.
//! Stubs are payload for the dictionary, and headers and signatures are control.

use bytes::Bytes;
use vocab::SegmentKind;

use super::pdu::{HEADER, PduError, PduHeader, TRAILER};
use super::splitter::SecurityTrailer;

/// Stubs below this length are control: their references would be longer than themselves, and they
/// rarely repeat.
pub const PAYLOAD_MIN: usize = 512;

/// A PDU that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassedPdu {
    /// Its header.
    pub header: PduHeader,
    /// Its security trailer, if there is one.
    pub trailer: Option<SecurityTrailer>,
    /// Bytes of its stub, with the padding.
    pub stub_length: usize,
}

/// Bytes that pass, and the PDUs that end in them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CutBytes {
    /// The bytes, in order.
    pub pieces: Vec<(SegmentKind, Bytes)>,
    /// The PDUs, in order.
    pub passed: Vec<PassedPdu>,
    /// Bytes behind the last of these PDUs, if [`PduCutter::cut`] was to stop there.
    pub rest: Bytes,
}

/// The position in the PDU that is passing.
#[derive(Debug)]
struct PassingPdu {
    header: PduHeader,
    /// Offset of the end of the stub.
    stub_end: usize,
    trailer: Vec<u8>,
}

/// Cuts passing bytes.
#[derive(Debug, Default)]
pub struct PduCutter {
    /// Bytes of a header that is not whole yet. They have passed.
    begun: Vec<u8>,
    passing: Option<PassingPdu>,
    /// The position in the present PDU.
    at: usize,
}

impl PduCutter {
    /// True between two PDUs.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.at == 0
    }

    /// Cuts the next bytes. With `stops_at_boundary` it leaves what follows the present PDU.
    ///
    /// # Errors
    /// When the bytes are no PDU. The cutter has passed none of them.
    pub fn cut(&mut self, bytes: &Bytes, stops_at_boundary: bool) -> Result<CutBytes, PduError> {
        let mut cut = CutBytes::default();
        let mut bytes = bytes.clone();
        while !bytes.is_empty() {
            if stops_at_boundary && self.at == 0 {
                cut.rest = bytes;
                return Ok(cut);
            }
            let (kind, length) = match &self.passing {
                None => (SegmentKind::Control, HEADER - self.begun.len()),
                Some(passing) => passing.run(self.at),
            };
            let piece = bytes.split_to(length.min(bytes.len()));
            self.pass(&piece)?;
            if let Some(passing) = &self.passing
                && self.at == usize::from(passing.header.fragment_length)
            {
                cut.passed.push(passing.passed());
                self.passing = None;
                self.at = 0;
            }
            cut.pieces.push((kind, piece));
        }
        Ok(cut)
    }

    fn pass(&mut self, piece: &[u8]) -> Result<(), PduError> {
        match &mut self.passing {
            None => {
                self.begun.extend_from_slice(piece);
                if self.begun.first() != Some(&5) {
                    return Err(PduError::Version);
                }
                if self.begun.len() == HEADER {
                    self.passing = Some(PassingPdu::begin(&self.begun)?);
                    self.begun.clear();
                }
            }
            Some(passing) => {
                let is_trailer = self.at >= passing.stub_end;
                if is_trailer && passing.trailer.len() < TRAILER {
                    let wanted = TRAILER - passing.trailer.len();
                    let wanted = wanted.min(piece.len());
                    passing.trailer.extend_from_slice(&piece[..wanted]);
                }
            }
        }
        self.at += piece.len();
        Ok(())
    }
}

impl PassingPdu {
    fn begin(bytes: &[u8]) -> Result<Self, PduError> {
        let header = PduHeader::parse(bytes)?;
        let whole = usize::from(header.fragment_length);
        let stub_end = match header.auth_length {
            0 => whole,
            length => whole - TRAILER - usize::from(length),
        };
        match header.stub_offset() <= stub_end {
            true => Ok(Self {
                header,
                stub_end,
                trailer: Vec::new(),
            }),
            false => Err(PduError::Length),
        }
    }

    fn stub_length(&self) -> usize {
        self.stub_end - self.header.stub_offset()
    }

    /// The kind of the bytes from a position on, and their number.
    fn run(&self, at: usize) -> (SegmentKind, usize) {
        let whole = usize::from(self.header.fragment_length);
        let begin = self.header.stub_offset();
        if self.stub_length() < PAYLOAD_MIN && at < self.stub_end {
            return (SegmentKind::Control, self.stub_end - at);
        }
        match at {
            at if at < begin => (SegmentKind::Control, begin - at),
            at if at < self.stub_end => (SegmentKind::Payload, self.stub_end - at),
            _ => (SegmentKind::Control, whole - at),
        }
    }

    fn passed(&self) -> PassedPdu {
        let trailer = self.trailer.first_chunk().copied();
        PassedPdu {
            header: self.header,
            trailer: trailer.map(SecurityTrailer::parse),
            stub_length: self.stub_length(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{auth3, request};

    #[test]
    fn passing_bytes_are_cut_and_none_is_held() {
        let trailer = SecurityTrailer {
            mechanism: 10,
            level: 6,
            padding: 0,
            context: 3,
        };
        let stub = [7; 600];
        let stream = [request(1, 11, &stub), auth3(2, (trailer, b"token"))].concat();
        for step in [1, 3, 17, 600, stream.len()] {
            let mut cutter = PduCutter::default();
            let (mut through, mut payload) = (Vec::new(), 0);
            let mut passed = Vec::new();
            for piece in stream.chunks(step) {
                let cut = cutter.cut(&Bytes::copy_from_slice(piece), false).unwrap();
                for (kind, bytes) in cut.pieces {
                    if kind == SegmentKind::Payload {
                        assert!(bytes.iter().all(|byte| *byte == 7));
                        payload += bytes.len();
                    }
                    through.extend(bytes);
                }
                passed.extend(cut.passed);
            }
            assert_eq!(through, stream);
            assert_eq!(payload, 600);
            assert_eq!(passed[0].stub_length, 600);
            assert_eq!(passed[0].trailer, None);
            assert_eq!(passed[1].trailer, Some(trailer));
            assert!(cutter.at_boundary());
        }
    }

    #[test]
    fn cutting_stops_at_a_boundary() {
        let stream = Bytes::from([request(1, 11, b"one"), request(2, 11, b"two")].concat());
        let mut cutter = PduCutter::default();
        let _ = cutter.cut(&stream.slice(..5), false).unwrap();
        let cut = cutter.cut(&stream.slice(5..), true).unwrap();
        assert_eq!(cut.rest, request(2, 11, b"two"));
        assert!(cutter.at_boundary());
    }
}
