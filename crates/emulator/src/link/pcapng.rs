//! Writer of captures in the pcapng format (draft-ietf-opsawg-pcapng), which Wireshark opens.
//!
//! One section with one interface for each end of the link, stamps in nanoseconds, and comments
//! on packets. All blocks are little-endian; each option is padded to four bytes.
//!
//! ```text
//!   section header ─ interface (end A) ─ interface (end B) ─ packet ─ packet ─ …
//! ```
//! It writes only what a link's log needs, and reads nothing.

use std::io::{self, Write};

/// draft-ietf-opsawg-pcapng §4.1 (Section Header Block).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// §4.2 (Interface Description Block).
const INTERFACE_DESCRIPTION: u32 = 1;
/// §4.3 (Enhanced Packet Block).
const ENHANCED_PACKET: u32 = 6;

/// §3.5 (Options).
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION_TEXT: u16 = 3;
const TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;

/// 10^-9 s.
const NANOSECONDS: u8 = 9;

/// First header of an interface's packets, as numbered in tcpdump.org's list of link types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkType {
    /// LINKTYPE_ETHERNET.
    Ethernet = 1,
    /// LINKTYPE_RAW: IPv4 or IPv6.
    Raw = 101,
}

/// Direction of a packet, seen from the interface; §4.3.1 (Enhanced Packet Block Flags Word).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureDirection {
    /// Out of the interface's host into the link.
    Inbound = 1,
    /// Out of the link.
    Outbound = 2,
}

/// One end of the link.
#[derive(Clone, Debug)]
pub(super) struct CaptureInterface {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) link_type: LinkType,
}

/// A capture being written.
pub(super) struct PcapngWriter<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the section and its interfaces.
    pub(super) fn begin(
        out: W,
        program: &str,
        comment: &str,
        interfaces: &[CaptureInterface],
    ) -> io::Result<Self> {
        let mut capture = Self {
            out,
            block: Vec::with_capacity(2_048),
        };
        capture.put_u32(BYTE_ORDER_MAGIC);
        // Version 1.0, and a length that is not stated (§4.1).
        capture.put_u16(1);
        capture.put_u16(0);
        capture.block.extend(u64::MAX.to_le_bytes());
        capture.put_option(COMMENT, comment.as_bytes());
        capture.put_option(USER_APPLICATION, program.as_bytes());
        capture.put_option(END_OF_OPTIONS, &[]);
        capture.write_block(SECTION_HEADER)?;
        for interface in interfaces {
            capture.put_u16(interface.link_type as u16);
            capture.put_u16(0);
            // No limit on what is kept of a packet.
            capture.put_u32(0);
            capture.put_option(INTERFACE_NAME, interface.name.as_bytes());
            capture.put_option(INTERFACE_DESCRIPTION_TEXT, interface.description.as_bytes());
            capture.put_option(TIME_RESOLUTION, &[NANOSECONDS]);
            capture.put_option(END_OF_OPTIONS, &[]);
            capture.write_block(INTERFACE_DESCRIPTION)?;
        }
        Ok(capture)
    }

    /// Writes one packet; `at` is nanoseconds since 1970.
    pub(super) fn packet(
        &mut self,
        interface: u32,
        at: u64,
        heading: CaptureDirection,
        packet: &[u8],
        comment: &str,
    ) -> io::Result<()> {
        let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        self.put_u32(interface);
        self.put_u32((at >> 32) as u32);
        self.put_u32(at as u32);
        self.put_u32(length);
        self.put_u32(length);
        self.put_padded(packet);
        self.put_option(PACKET_FLAGS, &(heading as u32).to_le_bytes());
        self.put_option(COMMENT, comment.as_bytes());
        self.put_option(END_OF_OPTIONS, &[]);
        self.write_block(ENHANCED_PACKET)
    }

    /// The underlying writer.
    pub(super) fn out(&mut self) -> &mut W {
        &mut self.out
    }

    /// A block says its length before and behind its body (§3.1, General Block Structure).
    fn write_block(&mut self, kind: u32) -> io::Result<()> {
        const FRAME: u32 = 12;
        let length = (self.block.len() as u32 + FRAME).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&length)?;
        self.block.clear();
        Ok(())
    }

    fn put_u16(&mut self, value: u16) {
        self.block.extend(value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.block.extend(value.to_le_bytes());
    }

    fn put_padded(&mut self, bytes: &[u8]) {
        self.block.extend(bytes);
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.block.extend(&[0; 3][..padding]);
    }

    /// An option longer than its length field can say is cut.
    fn put_option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.put_u16(code);
        self.put_u16(value.len() as u16);
        self.put_padded(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(name: &str) -> CaptureInterface {
        CaptureInterface {
            name: name.to_owned(),
            description: "an end".to_owned(),
            link_type: LinkType::Raw,
        }
    }

    #[test]
    fn blocks_frame_each_other_to_the_end() {
        let mut bytes = Vec::new();
        let mut capture =
            PcapngWriter::begin(&mut bytes, "test", "{}", &[end("a"), end("bb")]).unwrap();
        let at = 1_700_000_000_123_456_789;
        capture
            .packet(
                1,
                at,
                CaptureDirection::Outbound,
                &[0x45, 0, 0, 0, 1],
                "delivered",
            )
            .unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut position, mut kinds) = (0, Vec::new());
        while position < bytes.len() {
            let length = word(position + 4) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(position + length - 4) as usize, length);
            kinds.push((word(position), position));
            position += length;
        }
        assert_eq!(position, bytes.len());
        let [_, _, _, (kind, packet)] = kinds[..] else {
            panic!("{kinds:?}");
        };
        assert_eq!(kind, ENHANCED_PACKET);
        assert_eq!(word(packet + 8), 1);
        let stamp = u64::from(word(packet + 12)) << 32 | u64::from(word(packet + 16));
        assert_eq!(stamp, at);
        assert_eq!((word(packet + 20), word(packet + 24)), (5, 5));
        assert_eq!(
            &bytes[packet + 28..packet + 36],
            [0x45, 0, 0, 0, 1, 0, 0, 0]
        );
    }

    /// An IPv4 packet with a TCP segment; a flag is a bit of its header.
    fn segment(from: u16, to: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0];
        packet.extend((40 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        for port in [from, to] {
            packet.extend([192, 0, 2, if port == 80 { 2 } else { 1 }]);
        }
        packet.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
        packet.extend([sequence.to_be_bytes(), [0; 4]].concat());
        packet.extend([0x50, flags, 255, 255, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    /// A link's capture has each packet that came through twice, at either end, and a lost one once.
    #[test]
    fn capture_shows_the_packets_hosts_sent_once() {
        use capture::{CaptureReader, CapturedPacket, StreamEvent, StreamReassembler};
        const FIN_ACK: u8 = 0x11;
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        let (out, back) = ((40_000, 80), (80, 40_000));
        let answer: Vec<u8> = (0..5_000_u32).map(|byte| byte as u8).collect();
        let mut packets = vec![
            (0, segment(out.0, out.1, 9, SYN, b""), true),
            (1, segment(back.0, back.1, 99, SYN | ACK, b""), true),
            (2, segment(out.0, out.1, 10, ACK, b"GET"), true),
        ];
        for (number, part) in answer.chunks(1_000).enumerate() {
            let sequence = 100 + 1_000 * number as u32;
            let packet = segment(back.0, back.1, sequence, ACK, part);
            packets.push((3 + number as u64, packet, number != 1));
        }
        // What was lost comes again, behind what was sent after it.
        let again = segment(back.0, back.1, 1_100, ACK, &answer[1_000..2_000]);
        packets.push((300, again, true));
        packets.push((301, segment(back.0, back.1, 5_100, FIN_ACK, b""), true));
        packets.push((302, segment(out.0, out.1, 13, FIN_ACK, b""), true));
        packets.push((303, segment(back.0, back.1, 5_101, ACK, b""), true));

        let mut bytes = Vec::new();
        let mut capture =
            PcapngWriter::begin(&mut bytes, "test", "{}", &[end("a"), end("b")]).unwrap();
        for (at_ms, packet, came_through) in &packets {
            let at = 1_700_000_000_000_000_000 + at_ms * 1_000_000;
            let into = u32::from(packet[15] == 2);
            capture
                .packet(into, at, CaptureDirection::Inbound, packet, "forward 1")
                .unwrap();
            if *came_through {
                capture
                    .packet(
                        1 - into,
                        at + 150_000_000,
                        CaptureDirection::Outbound,
                        packet,
                        "",
                    )
                    .unwrap();
            }
        }

        let mut streams = StreamReassembler::default();
        let mut frames = CaptureReader::open(&bytes[..]).unwrap();
        while let Some(frame) = frames.next_frame().unwrap() {
            streams.handle(CapturedPacket::of(&frame));
        }
        streams.finish();
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        while let Some(event) = streams.poll_event() {
            if let StreamEvent::Data {
                direction, bytes, ..
            } = event
            {
                match direction {
                    capture::StreamDirection::FromClient => asked.extend_from_slice(&bytes),
                    capture::StreamDirection::FromServer => answered.extend_from_slice(&bytes),
                }
            }
        }
        assert_eq!(asked, b"GET");
        assert!(answered == answer);
        let counts = streams.counts();
        assert_eq!((counts.connections, counts.begun_before), (1, 0));
        assert_eq!((counts.gaps, counts.bytes), (0, 5_003));
    }
}
