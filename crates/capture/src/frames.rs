//! Capture files as tcpdump and Wireshark write them, read from front to back: pcap and pcapng.
//!
//! ```text
//!  pcap:   header ─ record ─ record ─ …
//!  pcapng: section header ─ interface ─ interface ─ packet ─ … ─ section header ─ …
//! ```
//! The formats are those of pcap-savefile(5) and draft-ietf-opsawg-pcapng, in either byte order, with
//! stamps of any resolution. A [`CapturedFrame`] is what an interface saw, as far as it was kept;
//! [`CapturedFrame::network`] finds the IP packet in it: Ethernet with VLAN tags and PPPoE, Linux's cooked
//! captures, loopback, raw IP. Memory is bounded by the longest packet.
//!
//! It knows nothing of IP.

use std::io::{self, Read};
use std::time::Duration;

use thiserror::Error;

/// The longest record or block that is believed, in bytes: tcpdump's greatest snapshot length is
/// 256 KiB, and options may stand behind a packet.
const MOST_BYTES: usize = 16 << 20;
/// Interfaces of one section at most.
const MOST_INTERFACES: usize = 65_536;

/// The first four bytes of a section header block (draft-ietf-opsawg-pcapng §4.1), in either order.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Interface options (§4.2): the resolution of stamps, and the offset of their zero in seconds.
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;

const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;

/// Error that ends the reading of a capture.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The first bytes are of no capture.
    #[error("it does not begin as a pcap or pcapng file does")]
    NoCapture,
    /// The file ends in the middle of a packet, as when tcpdump was killed.
    #[error("it ends in the middle of a packet (after {packets} whole ones)")]
    Cut {
        /// Packets before.
        packets: u64,
    },
    /// The bytes that follow are malformed.
    #[error("it is damaged behind {packets} packets: {what}")]
    Nonsense {
        /// Packets before.
        packets: u64,
        /// Name of the part that was read.
        what: &'static str,
    },
    /// The system's word.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// One captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Capture time since the Unix epoch.
    pub at: Duration,
    /// Its link type, as tcpdump.org's list numbers it.
    pub link: u32,
    /// Its length on the wire.
    pub wire_bytes: usize,
    /// Captured bytes of the frame.
    pub bytes: Vec<u8>,
}

/// Returns `true` if a file with these first bytes is a capture.
#[must_use]
pub fn is_capture(first: &[u8]) -> bool {
    CaptureFormat::of(first).is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteOrder {
    Little,
    Big,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaptureFormat {
    Pcap(ByteOrder, u32),
    Pcapng,
}

impl CaptureFormat {
    fn of(first: &[u8]) -> Option<Self> {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            match order.word(first, 0)? {
                PCAP_MICROSECONDS => return Some(Self::Pcap(order, 1_000)),
                PCAP_NANOSECONDS => return Some(Self::Pcap(order, 1)),
                SECTION_HEADER => return Some(Self::Pcapng),
                _ => {}
            }
        }
        None
    }
}

impl ByteOrder {
    fn half(self, bytes: &[u8], start: usize) -> Option<u16> {
        let bytes = bytes.get(start..start + 2)?.try_into().ok()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        })
    }

    fn word(self, bytes: &[u8], start: usize) -> Option<u32> {
        let bytes = bytes.get(start..start + 4)?.try_into().ok()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }
}

/// An interface of a pcapng section.
#[derive(Clone, Copy, Debug)]
struct InterfaceDescription {
    link: u32,
    snapshot: usize,
    /// Stamps in one second.
    units: u128,
    offset: i64,
}

impl InterfaceDescription {
    fn time(&self, stamp: u64) -> Duration {
        let nanoseconds = u128::from(stamp) * 1_000_000_000 / self.units;
        let whole = Duration::new(
            u64::try_from(nanoseconds / 1_000_000_000).unwrap_or(u64::MAX >> 1),
            (nanoseconds % 1_000_000_000) as u32,
        );
        let offset = Duration::from_secs(self.offset.unsigned_abs());
        match self.offset {
            0.. => whole.saturating_add(offset),
            _ => whole.saturating_sub(offset),
        }
    }
}

/// A capture being read.
#[derive(Debug)]
pub struct CaptureReader<R> {
    input: R,
    kind: CaptureFormat,
    order: ByteOrder,
    /// Interfaces of the section; a pcap file has one.
    interfaces: Vec<InterfaceDescription>,
    packets: u64,
    /// A pcapng block type that was read to see what kind of file it is.
    first: Option<[u8; 4]>,
}

impl<R: Read> CaptureReader<R> {
    /// Reads the head of a capture.
    ///
    /// # Errors
    /// When it is no capture, or cannot be read.
    pub fn open(mut input: R) -> Result<Self, CaptureError> {
        let mut first = [0; 4];
        let kind = match read_full(&mut input, &mut first)? {
            4 => CaptureFormat::of(&first).ok_or(CaptureError::NoCapture)?,
            _ => return Err(CaptureError::NoCapture),
        };
        let mut frames = Self {
            input,
            kind,
            order: ByteOrder::Little,
            interfaces: Vec::new(),
            packets: 0,
            first: None,
        };
        match kind {
            CaptureFormat::Pcap(order, _) => {
                let mut header = [0; 20];
                if read_full(&mut frames.input, &mut header)? < header.len() {
                    return Err(CaptureError::Cut { packets: 0 });
                }
                frames.order = order;
                frames.interfaces.push(InterfaceDescription {
                    // The upper bits tell of frame check sequences.
                    link: order.word(&header, 16).unwrap_or_default() & 0xffff,
                    snapshot: MOST_BYTES,
                    units: 1,
                    offset: 0,
                });
            }
            CaptureFormat::Pcapng => frames.first = Some(first),
        }
        Ok(frames)
    }

    /// Whole packets so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    /// When there is more, and it cannot be read.
    pub fn next_frame(&mut self) -> Result<Option<CapturedFrame>, CaptureError> {
        let frame = match self.kind {
            CaptureFormat::Pcap(order, nanoseconds) => self.next_record(order, nanoseconds)?,
            CaptureFormat::Pcapng => self.next_packet_block()?,
        };
        self.packets += u64::from(frame.is_some());
        Ok(frame)
    }

    fn next_record(
        &mut self,
        order: ByteOrder,
        nanoseconds: u32,
    ) -> Result<Option<CapturedFrame>, CaptureError> {
        let mut head = [0; 16];
        match read_full(&mut self.input, &mut head)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(self.cut()),
        }
        let field = |index| order.word(&head, index).unwrap_or_default();
        let kept = field(8) as usize;
        if kept > MOST_BYTES {
            return Err(self.nonsense("a packet of impossible length"));
        }
        let bytes = self.take(kept)?;
        let fraction = u64::from(field(4)) * u64::from(nanoseconds);
        Ok(Some(CapturedFrame {
            at: Duration::from_secs(field(0).into()) + Duration::from_nanos(fraction),
            link: self.interfaces[0].link,
            wire_bytes: (field(12) as usize).max(kept),
            bytes,
        }))
    }

    fn next_packet_block(&mut self) -> Result<Option<CapturedFrame>, CaptureError> {
        loop {
            let mut head = [0; 8];
            let already = self.first.take();
            let from = match already {
                Some(first) => {
                    head[..4].copy_from_slice(&first);
                    4
                }
                None => 0,
            };
            match from + read_full(&mut self.input, &mut head[from..])? {
                0 => return Ok(None),
                8 => {}
                _ => return Err(self.cut()),
            }
            // A section header reads alike in both orders, and says which one holds from here.
            if self.order.word(&head, 0) == Some(SECTION_HEADER) {
                self.begin_section(&head)?;
                continue;
            }
            let kind = self.order.word(&head, 0).unwrap_or_default();
            let body = self.block_body(&head)?;
            match kind {
                INTERFACE_DESCRIPTION => self.add_interface(&body)?,
                ENHANCED_PACKET | OBSOLETE_PACKET | SIMPLE_PACKET => {
                    return self.packet(kind, &body).map(Some);
                }
                // Names, statistics, comments, other people's blocks.
                _ => {}
            }
        }
    }

    fn begin_section(&mut self, head: &[u8; 8]) -> Result<(), CaptureError> {
        let magic = self.take(4)?;
        self.order = match ByteOrder::Little.word(&magic, 0) {
            Some(BYTE_ORDER_MAGIC) => ByteOrder::Little,
            _ if ByteOrder::Big.word(&magic, 0) == Some(BYTE_ORDER_MAGIC) => ByteOrder::Big,
            _ => return Err(self.nonsense("a section without a byte order")),
        };
        self.interfaces.clear();
        let length = self.order.word(head, 4).unwrap_or_default() as usize;
        if !(28..=MOST_BYTES).contains(&length) || !length.is_multiple_of(4) {
            return Err(self.nonsense("a section header of impossible length"));
        }
        let rest = self.take(length - 12)?;
        if self.order.half(&rest, 0) != Some(1) {
            return Err(self.nonsense("a section of an unknown version"));
        }
        Ok(())
    }

    /// Reads the bytes between a block's two lengths.
    fn block_body(&mut self, head: &[u8; 8]) -> Result<Vec<u8>, CaptureError> {
        let length = self.order.word(head, 4).unwrap_or_default() as usize;
        if !(12..=MOST_BYTES).contains(&length) || !length.is_multiple_of(4) {
            return Err(self.nonsense("a block of impossible length"));
        }
        let mut body = self.take(length - 8)?;
        let tail = body.len() - 4;
        if self.order.word(&body, tail) != Some(length as u32) {
            return Err(self.nonsense("a block whose two lengths differ"));
        }
        body.truncate(tail);
        Ok(body)
    }

    fn add_interface(&mut self, body: &[u8]) -> Result<(), CaptureError> {
        let (Some(link), Some(snapshot)) = (self.order.half(body, 0), self.order.word(body, 4))
        else {
            return Err(self.nonsense("an interface without a link type"));
        };
        if self.interfaces.len() >= MOST_INTERFACES {
            return Err(self.nonsense("too many interfaces"));
        }
        let mut interface = InterfaceDescription {
            link: link.into(),
            snapshot: match snapshot as usize {
                0 => MOST_BYTES,
                limit => limit,
            },
            units: 1_000_000,
            offset: 0,
        };
        let mut options = body.get(8..).unwrap_or_default();
        while let (Some(code), Some(length)) =
            (self.order.half(options, 0), self.order.half(options, 2))
        {
            let length = usize::from(length);
            let Some(value) = options.get(4..4 + length) else {
                break;
            };
            match (code, value) {
                (IF_TSRESOL, [resolution]) => {
                    let power = u32::from(resolution & 0x7f);
                    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
                    let units = base.checked_pow(power).filter(|_| power <= 63);
                    let unknown = "stamps of an impossible resolution";
                    interface.units = units.ok_or_else(|| self.nonsense(unknown))?;
                }
                (IF_TSOFFSET, value) => {
                    if let Ok(bytes) = <[u8; 8]>::try_from(value) {
                        interface.offset = match self.order {
                            ByteOrder::Little => i64::from_le_bytes(bytes),
                            ByteOrder::Big => i64::from_be_bytes(bytes),
                        };
                    }
                }
                (0, _) => break,
                _ => {}
            }
            options = options
                .get(4 + length.next_multiple_of(4)..)
                .unwrap_or_default();
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// §4.3 (Enhanced Packet Block), §4.4 (Simple Packet Block), §A.1 (Packet Block, obsolete).
    fn packet(&self, kind: u32, body: &[u8]) -> Result<CapturedFrame, CaptureError> {
        let field = |start| self.order.word(body, start).map(|word| word as usize);
        let head = match kind {
            SIMPLE_PACKET => Some((0, 0, field(0), None, 4)),
            OBSOLETE_PACKET => {
                let interface = self.order.half(body, 0).map(usize::from);
                interface.map(|interface| (interface, 4, field(16), field(12), 20))
            }
            _ => field(0).map(|interface| (interface, 4, field(16), field(12), 20)),
        };
        let short = "a packet block that is too short";
        let Some((number, stamp, Some(wire_bytes), kept, start)) = head else {
            return Err(self.nonsense(short));
        };
        let interface = self
            .interfaces
            .get(number)
            .ok_or_else(|| self.nonsense("a packet of an unknown interface"))?;
        let kept = kept.unwrap_or(wire_bytes.min(interface.snapshot));
        let bytes = body
            .get(start..)
            .and_then(|rest| rest.get(..kept))
            .ok_or_else(|| self.nonsense(short))?;
        let at = match kind {
            SIMPLE_PACKET => Duration::ZERO,
            _ => {
                let high = self.order.word(body, stamp).unwrap_or_default();
                let low = self.order.word(body, stamp + 4).unwrap_or_default();
                interface.time(u64::from(high) << 32 | u64::from(low))
            }
        };
        Ok(CapturedFrame {
            at,
            link: interface.link,
            wire_bytes: wire_bytes.max(kept),
            bytes: bytes.to_vec(),
        })
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, CaptureError> {
        let mut bytes = Vec::new();
        // Read as it comes, so that a lying length allocates nothing.
        self.input
            .by_ref()
            .take(length as u64)
            .read_to_end(&mut bytes)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => Err(self.cut()),
        }
    }

    fn cut(&self) -> CaptureError {
        CaptureError::Cut {
            packets: self.packets,
        }
    }

    fn nonsense(&self, what: &'static str) -> CaptureError {
        CaptureError::Nonsense {
            packets: self.packets,
            what,
        }
    }
}

impl CapturedFrame {
    /// The IP packet in the frame, as far as it was kept, and its length on the wire (with what
    /// Ethernet pads); `None` when it carries something else.
    #[must_use]
    pub fn network(&self) -> Option<(&[u8], usize)> {
        let start = match self.link {
            // LINKTYPE_NULL and LINKTYPE_LOOP: an address family of four bytes.
            0 | 108 => 4,
            1 => self.behind_ethernet(12)?,
            // LINKTYPE_RAW, and DLT_RAW as systems number it; LINKTYPE_IPV4, LINKTYPE_IPV6.
            101 | 12 | 14 | 228 | 229 => 0,
            // LINKTYPE_LINUX_SLL: the protocol stands where Ethernet's would.
            113 => self.behind_ethernet(14)?,
            // LINKTYPE_LINUX_SLL2: it stands first, in a header of twenty bytes.
            276 => match self.half(0)? {
                IPV4 | IPV6 => 20,
                _ => return None,
            },
            _ => return None,
        };
        let packet = self.bytes.get(start..)?;
        let version = packet.first()? >> 4;
        matches!(version, 4 | 6).then_some((packet, self.wire_bytes.saturating_sub(start)))
    }

    /// Returns the start of the packet, from the offset of the type field.
    fn behind_ethernet(&self, mut at: usize) -> Option<usize> {
        // Two tags are the most that is seen (IEEE 802.1ad); more end the search.
        for _ in 0..4 {
            match self.half(at)? {
                IPV4 | IPV6 => return Some(at + 2),
                // Tags: IEEE 802.1Q, 802.1ad, and what was used before it.
                0x8100 | 0x88a8 | 0x9100 => at += 4,
                // A PPPoE session (RFC 2516 §4): six bytes, then PPP's protocol.
                0x8864 => {
                    return match self.half(at + 8)? {
                        0x0021 | 0x0057 => Some(at + 10),
                        _ => None,
                    };
                }
                _ => return None,
            }
        }
        None
    }

    fn half(&self, start: usize) -> Option<u16> {
        ByteOrder::Big.half(&self.bytes, start)
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Fills `buffer` as far as there is something; says how far.
fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> (Vec<CapturedFrame>, Option<CaptureError>) {
        let mut frames = Vec::new();
        let mut reader = match CaptureReader::open(bytes) {
            Ok(reader) => reader,
            Err(damage) => return (frames, Some(damage)),
        };
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, None),
                Err(damage) => return (frames, Some(damage)),
            }
        }
    }

    fn pcap(
        order: ByteOrder,
        magic: u32,
        link: u32,
        packets: &[(u32, u32, &[u8], u32)],
    ) -> Vec<u8> {
        let word = |word: u32| match order {
            ByteOrder::Little => word.to_le_bytes(),
            ByteOrder::Big => word.to_be_bytes(),
        };
        let mut bytes: Vec<u8> = [magic, 0, 0, 0, 256, link].map(word).concat();
        for (seconds, fraction, packet, wire) in packets {
            let head = [*seconds, *fraction, packet.len() as u32, *wire];
            bytes.extend(head.map(word).concat());
            bytes.extend_from_slice(packet);
        }
        bytes
    }

    fn block(order: ByteOrder, kind: u32, body: &[u8]) -> Vec<u8> {
        let word = |word: u32| match order {
            ByteOrder::Little => word.to_le_bytes(),
            ByteOrder::Big => word.to_be_bytes(),
        };
        let length = body.len().next_multiple_of(4) as u32 + 12;
        let mut bytes = [word(kind), word(length)].concat();
        bytes.extend_from_slice(body);
        bytes.resize(length as usize - 4, 0);
        bytes.extend(word(length));
        bytes
    }

    /// One section with an interface of milliseconds, and a packet of each kind of block.
    fn pcapng(order: ByteOrder) -> Vec<u8> {
        let word = |word: u32| match order {
            ByteOrder::Little => word.to_le_bytes(),
            ByteOrder::Big => word.to_be_bytes(),
        };
        let half = |half: u16| match order {
            ByteOrder::Little => half.to_le_bytes(),
            ByteOrder::Big => half.to_be_bytes(),
        };
        let section = [&word(BYTE_ORDER_MAGIC)[..], &half(1), &half(0), &[0xff; 8]].concat();
        let mut bytes = block(order, SECTION_HEADER, &section);
        let interface = [
            &half(101)[..],
            &half(0),
            &word(3),
            &half(9),
            &half(1),
            &[3, 0, 0, 0],
        ];
        bytes.extend(block(order, INTERFACE_DESCRIPTION, &interface.concat()));
        bytes.extend(block(order, 5, &[0; 12]));
        let enhanced = [0, 0, 5_250, 3, 40].map(word).concat();
        bytes.extend(block(
            order,
            ENHANCED_PACKET,
            &[&enhanced[..], b"one"].concat(),
        ));
        let simple = [&word(40)[..], b"two"].concat();
        bytes.extend(block(order, SIMPLE_PACKET, &simple));
        bytes
    }

    #[test]
    fn pcap_is_read_in_both_orders_and_resolutions() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            for (magic, unit) in [(PCAP_MICROSECONDS, 1_000), (PCAP_NANOSECONDS, 1)] {
                let file = pcap(order, magic, 101, &[(5, 250, b"abc", 40), (6, 0, b"", 0)]);
                let (frames, damage) = all(&file);
                assert!(damage.is_none());
                assert_eq!(frames.len(), 2);
                assert_eq!(frames[0].at, Duration::new(5, 250 * unit));
                assert_eq!(frames[0].bytes, b"abc");
                assert_eq!((frames[0].wire_bytes, frames[0].link), (40, 101));
            }
        }
    }

    #[test]
    fn pcapng_sections_may_change_byte_order() {
        let mut file = pcapng(ByteOrder::Little);
        file.extend(pcapng(ByteOrder::Big));
        let (frames, damage) = all(&file);
        assert!(damage.is_none(), "{damage:?}");
        assert_eq!(frames.len(), 4);
        assert_eq!(frames[0], frames[2]);
        assert_eq!(frames[0].at, Duration::from_millis(5_250));
        assert_eq!(frames[0].bytes, b"one");
        assert_eq!(frames[1].bytes, b"two");
        assert_eq!((frames[1].wire_bytes, frames[1].link), (40, 101));
    }

    #[test]
    fn damaged_file_is_reported_and_never_panics() {
        let whole = [
            pcap(
                ByteOrder::Little,
                PCAP_MICROSECONDS,
                1,
                &[(1, 2, &[7; 60][..], 60); 2],
            ),
            pcapng(ByteOrder::Little),
        ];
        for file in &whole {
            for length in 0..file.len() {
                let (frames, damage) = all(&file[..length]);
                assert!(frames.len() <= 2);
                if length < 4 {
                    assert!(matches!(damage, Some(CaptureError::NoCapture)));
                }
            }
            let (frames, damage) = all(&file[..file.len() - 1]);
            assert_eq!(frames.len(), 1);
            assert!(matches!(damage, Some(CaptureError::Cut { packets: 1 })));
            let mut random = vocab::SeededRandom::from_seed(1);
            for _ in 0..5_000 {
                let mut damaged = file.clone();
                let at = random.below(damaged.len() as u64) as usize;
                damaged[at] = random.next_u64() as u8;
                let (frames, _) = all(&damaged);
                for frame in frames {
                    let _ = frame.network();
                }
            }
        }
    }

    #[test]
    fn packet_is_found_behind_tags_and_headers() {
        let packet = [0x45_u8; 20];
        let found = |link, head: &[u8]| {
            let bytes = [head, &packet].concat();
            let frame = CapturedFrame {
                at: Duration::ZERO,
                link,
                wire_bytes: bytes.len(),
                bytes,
            };
            frame
                .network()
                .is_some_and(|(found, length)| found == packet && length == 20)
        };
        let ethernet = |tags: &[u8]| [&[0; 12], tags].concat();
        assert!(found(1, &ethernet(&[8, 0])));
        assert!(found(1, &ethernet(&[0x81, 0, 0, 7, 8, 0])));
        assert!(found(
            1,
            &ethernet(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8, 8, 0])
        ));
        assert!(found(
            1,
            &ethernet(&[0x88, 0x64, 0x11, 0, 0, 1, 0, 22, 0, 0x21])
        ));
        assert!(found(113, &[&[0; 14][..], &[8, 0]].concat()));
        assert!(found(276, &[&[8, 0][..], &[0; 18]].concat()));
        assert!(found(0, &[2, 0, 0, 0]));
        assert!(found(101, &[]));
        assert!(!found(1, &ethernet(&[8, 6])));
        assert!(!found(276, &[&[8, 6][..], &[0; 18]].concat()));
        assert!(!found(147, &[]));
    }
}
