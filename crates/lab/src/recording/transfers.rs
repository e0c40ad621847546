//! Computation of figures from packets: when each file's data was requested and last acknowledged,
//! and the bytes that crossed the WAN meanwhile.
//!
//! As the 2006 WX lab report times a transfer: **from the first request for the data to the last
//! acknowledgement of it**, both seen at the client's interface.
//!
//! | workload | request | data |
//! | --- | --- | --- |
//! | HTTP | the segment that starts with `GET /NAME ` | that connection, server to client |
//! | FTP | the control segment `RETR NAME` or `STOR NAME` | the connection to the port of the last 229 or 227 reply before it |
//! | SMB, document | the CREATE of NAME | that connection, all answers, up to the CREATE of the temporary file; and from there to TREE_DISCONNECT |
//! | MAPI | the first EcDoRpc or EcDoRpcExt2 with a RopReadStream | that connection, up to the EcDoDisconnect |
//! | SMB | the first READ or WRITE after the CREATE of NAME | that connection, up to the CLOSE that follows |
//!
//! The last acknowledgement is the first segment whose acknowledgement number covers the last
//! byte of data. **WAN bytes** are whole IP packets (IP and TCP headers included, no link layer),
//! both directions, seen at the emulator's near device, markers and multicast left out. They are shared out without a gap: a
//! file's window runs from its first packet (HTTP and MAPI: the SYN; FTP: the EPSV; SMB: the CREATE) to the
//! next file's; the first begins at the workload's begin marker, which gives it the session's
//! set-up, and the last ends at the end marker.
//!
//! Segments are not put together: each of these messages is written by a client that has waited
//! for an answer before, and so starts a segment of its own.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::marker::{self, MarkerEdge, WorkloadMarker};
use crate::servers::{FTP_PORT, HTTP_PORT, SMB_PORT};
use crate::workload::{TransferDirection, WorkloadKind};
use capture::{ACK, CapturedPacket, TransportHeader};

/// Prefix of the temporary file that an office suite saves to.
const TEMPORARY_PREFIX: &str = "~WRD";

/// Figures of one file's transfer, from the captures.
#[derive(Clone, Debug, PartialEq)]
pub struct FileTransfer {
    /// The file's name.
    pub file: String,
    /// Time of the first request for the data, since the Unix epoch.
    pub requested: Duration,
    /// Time at which the last of the data was acknowledged.
    pub acknowledged: Duration,
    /// Time from the first to the last packet of the file's window: with FTP and SMB its part of
    /// the session's wall time.
    pub window: Duration,
    /// Bytes that crossed the WAN in the file's window, both directions, IP headers included.
    pub wan_bytes: u64,
    /// Parts of the time where a document was opened and saved.
    pub office: Option<OfficeTimes>,
}

/// Times of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfficeTimes {
    /// Time from the document's CREATE to the acknowledgement of the last answer before the
    /// temporary file's CREATE.
    pub open: Duration,
    /// Time from the temporary file's CREATE to the acknowledgement of the last answer before the
    /// client leaves.
    pub save: Duration,
}

impl FileTransfer {
    /// Time from the first request for the data to its last acknowledgement; for a document the
    /// sum of opening and saving.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match self.office {
            Some(office) => office.open + office.save,
            None => self.acknowledged.saturating_sub(self.requested),
        }
    }
}

/// A connection as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClientConnection {
    client: SocketAddr,
    server: SocketAddr,
}

impl ClientConnection {
    fn of_request(packet: &CapturedPacket) -> Self {
        Self {
            client: packet.source,
            server: packet.destination,
        }
    }

    fn is_outward(self, packet: &CapturedPacket) -> bool {
        packet.source == self.client && packet.destination == self.server
    }

    fn is_inward(self, packet: &CapturedPacket) -> bool {
        packet.source == self.server && packet.destination == self.client
    }
}

/// Times of one file's transfer, found before the WAN's bytes are divided among files.
struct FoundTransfer {
    start: Duration,
    requested: Duration,
    acknowledged: Duration,
    office: Option<OfficeTimes>,
}

/// Finds each of `names` (in the order they were transferred) between the markers of `label`.
///
/// # Errors
/// When a marker, a request or an acknowledgement is not in the captures.
pub fn transfers(
    client: &[CapturedPacket],
    wan: &[CapturedPacket],
    workload: WorkloadKind,
    label: &str,
    names: &[&str],
) -> Result<Vec<FileTransfer>> {
    let between = between_markers(client, label).context("in the client's capture")?;
    let crossing = between_markers(wan, label).context("in the WAN's capture")?;
    let mut found = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let file = match workload {
            WorkloadKind::HttpDownload => find_http(between, name),
            WorkloadKind::FtpDownload | WorkloadKind::FtpUpload => {
                find_ftp(between, name, workload.way())
            }
            WorkloadKind::SmbDownload
            | WorkloadKind::SmbUpload
            | WorkloadKind::SmbSerialDownload => find_smb(between, name, workload.way()),
            WorkloadKind::SmbOffice => find_office(between, name),
            WorkloadKind::MapiXp | WorkloadKind::Mapi2003 => find_mapi(between, index),
        };
        found.push(file.with_context(|| format!("{name} is not whole in the capture of {label}"))?);
    }
    Ok(names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let file = &found[index];
            let start = if index == 0 {
                Duration::ZERO
            } else {
                file.start
            };
            let end = found
                .get(index + 1)
                .map_or(Duration::MAX, |next| next.start);
            let inside = |packet: &&CapturedPacket| (start..end).contains(&packet.at);
            let mut own = between
                .iter()
                .filter(inside)
                .filter(|packet| is_tcp(packet));
            let first = own.next().map_or(file.start, |packet| packet.at);
            let last = own.next_back().map_or(first, |packet| packet.at);
            FileTransfer {
                file: (*name).to_owned(),
                requested: file.requested,
                acknowledged: file.acknowledged,
                office: file.office,
                window: last.saturating_sub(first),
                wan_bytes: crossing
                    .iter()
                    .filter(inside)
                    .filter(|packet| !is_marker(packet) && !is_multicast(packet))
                    .map(|packet| packet.ip_bytes)
                    .sum(),
            }
        })
        .collect())
}

fn is_tcp(packet: &CapturedPacket) -> bool {
    matches!(packet.transport, TransportHeader::Tcp { .. })
}

pub(super) fn is_marker(packet: &CapturedPacket) -> bool {
    packet.transport == TransportHeader::Udp && packet.destination.port() == marker::PORT
}

/// The kernel announces the emulator's devices to each other (MLD); no site sends multicast.
pub(super) fn is_multicast(packet: &CapturedPacket) -> bool {
    packet.destination.ip().is_multicast()
}

/// The packets after the last begin marker and before the first end marker of `label`.
pub(super) fn between_markers<'a>(
    packets: &'a [CapturedPacket],
    label: &str,
) -> Result<&'a [CapturedPacket]> {
    let (begin, end) = markers(packets, label)?;
    Ok(&packets[begin + 1..end])
}

/// The time from the last begin marker to the first end marker of `label`.
pub(super) fn span_of_markers(packets: &[CapturedPacket], label: &str) -> Result<Range<Duration>> {
    let (begin, end) = markers(packets, label)?;
    Ok(packets[begin].at..packets[end].at)
}

/// Places of the last begin marker and the first end marker of `label`.
fn markers(packets: &[CapturedPacket], label: &str) -> Result<(usize, usize)> {
    let at_edge = |packet: &CapturedPacket, edge| {
        is_marker(packet)
            && WorkloadMarker::parse(&packet.payload)
                .is_some_and(|marker| marker.edge == edge && marker.label == label)
    };
    let begin = packets
        .iter()
        .rposition(|packet| at_edge(packet, MarkerEdge::Begin));
    let end = packets
        .iter()
        .position(|packet| at_edge(packet, MarkerEdge::End));
    match (begin, end) {
        (Some(begin), Some(end)) if begin < end => Ok((begin, end)),
        _ => bail!("there are no two markers for {label}"),
    }
}

fn find_http(packets: &[CapturedPacket], name: &str) -> Result<FoundTransfer> {
    let line = format!("GET /{name} ");
    let request = packets
        .iter()
        .find(|packet| {
            packet.destination.port() == HTTP_PORT && packet.payload.starts_with(line.as_bytes())
        })
        .context("its GET is not there")?;
    let connection = ClientConnection::of_request(request);
    let opening = packets
        .iter()
        .find(|packet| connection.is_outward(packet) && packet.opens_connection())
        .context("its SYN is not there")?;
    Ok(FoundTransfer {
        start: opening.at,
        requested: request.at,
        acknowledged: last_acknowledgement(
            packets,
            connection,
            TransferDirection::Download,
            request.at,
            None,
        )?,
        office: None,
    })
}

fn find_ftp(
    packets: &[CapturedPacket],
    name: &str,
    way: TransferDirection,
) -> Result<FoundTransfer> {
    let line = match way {
        TransferDirection::Download => format!("RETR {name}\r\n"),
        TransferDirection::Upload => format!("STOR {name}\r\n"),
    };
    let request = packets
        .iter()
        .position(|packet| {
            packet.destination.port() == FTP_PORT && packet.payload.starts_with(line.as_bytes())
        })
        .context("its RETR or STOR is not there")?;
    let before = &packets[..request];
    let request = &packets[request];
    let control = ClientConnection::of_request(request);
    let port = before
        .iter()
        .rev()
        .filter(|packet| control.is_inward(packet))
        .find_map(|packet| passive_port(&packet.payload))
        .context("no 229 or 227 reply stands before its RETR or STOR")?;
    let start = before
        .iter()
        .rev()
        .find(|packet| {
            control.is_outward(packet)
                && (packet.payload.starts_with(b"EPSV") || packet.payload.starts_with(b"PASV"))
        })
        .context("no EPSV or PASV stands before its RETR or STOR")?
        .at;
    let opening = packets
        .iter()
        .find(|packet| {
            packet.at >= start && packet.opens_connection() && packet.destination.port() == port
        })
        .context("its data connection is not there")?;
    let data = ClientConnection::of_request(opening);
    Ok(FoundTransfer {
        start,
        requested: request.at,
        acknowledged: last_acknowledgement(packets, data, way, start, None)?,
        office: None,
    })
}

/// The port in `229 Entering Extended Passive Mode (|||30461|)` (RFC 2428 §3, The EPSV Command)
/// or in `227 Entering Passive Mode (198,18,2,2,118,253)` (RFC 959 §4.1.2, PASV).
fn passive_port(reply: &[u8]) -> Option<u16> {
    let reply = std::str::from_utf8(reply).ok()?;
    let inside = reply.split_once('(')?.1.split_once(')')?.0;
    if reply.starts_with("229") {
        inside.trim_matches('|').parse().ok()
    } else if reply.starts_with("227") {
        let numbers: Vec<u8> = inside
            .split(',')
            .map_while(|number| number.parse().ok())
            .collect();
        let [.., high, low] = numbers[..] else {
            return None;
        };
        Some(u16::from_be_bytes([high, low]))
    } else {
        None
    }
}

/// [MS-SMB2] §2.2.1.2 (SMB2 Packet Header - SYNC): the command's number.
mod smb2 {
    pub(super) const LOGOFF: u16 = 2;
    pub(super) const TREE_DISCONNECT: u16 = 4;
    pub(super) const CREATE: u16 = 5;
    pub(super) const CLOSE: u16 = 6;
    pub(super) const READ: u16 = 8;
    pub(super) const WRITE: u16 = 9;

    /// Offset of the header: after the four bytes of direct TCP transport ([MS-SMB2] §2.1).
    const HEADER: usize = 4;

    /// The command, if the segment starts with an SMB2 message.
    pub(super) fn command(segment: &[u8]) -> Option<u16> {
        let header = segment.get(HEADER..HEADER + 14)?;
        (header.starts_with(b"\xfeSMB")).then(|| u16::from_le_bytes([header[12], header[13]]))
    }

    /// Tells whether the segment is a CREATE of a path that ends in `name`.
    pub(super) fn creates(segment: &[u8], name: &str) -> bool {
        created_name(segment).is_some_and(|created| created == name)
    }

    /// Last part of the path of a CREATE ([MS-SMB2] §2.2.13).
    pub(super) fn created_name(segment: &[u8]) -> Option<String> {
        let read = |start: usize| {
            let bytes = segment.get(HEADER + start..HEADER + start + 2)?;
            Some(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
        };
        if command(segment) != Some(CREATE) {
            return None;
        }
        // NameOffset counts from the start of the SMB2 header; both follow 44 bytes of the body.
        let (offset, length) = (read(64 + 44)?, read(64 + 46)?);
        let path = segment.get(HEADER + offset..HEADER + offset + length)?;
        let path: Vec<u16> = path
            .chunks_exact(2)
            .map(|unit| u16::from_le_bytes([unit[0], unit[1]]))
            .collect();
        let path = String::from_utf16_lossy(&path);
        path.rsplit('\\').next().map(str::to_owned)
    }
}

fn find_smb(
    packets: &[CapturedPacket],
    name: &str,
    way: TransferDirection,
) -> Result<FoundTransfer> {
    let create = packets
        .iter()
        .position(|packet| {
            packet.destination.port() == SMB_PORT && smb2::creates(&packet.payload, name)
        })
        .context("its CREATE is not there")?;
    let connection = ClientConnection::of_request(&packets[create]);
    let wanted = match way {
        TransferDirection::Download => smb2::READ,
        TransferDirection::Upload => smb2::WRITE,
    };
    let after = |command: u16, start: usize| {
        packets[start..]
            .iter()
            .position(|packet| {
                connection.is_outward(packet) && smb2::command(&packet.payload) == Some(command)
            })
            .map(|index| start + index)
    };
    let request = after(wanted, create).context("its first READ or WRITE is not there")?;
    let close = after(smb2::CLOSE, request).context("its CLOSE is not there")?;
    Ok(FoundTransfer {
        start: packets[create].at,
        requested: packets[request].at,
        acknowledged: last_acknowledgement(
            packets,
            connection,
            way,
            packets[request].at,
            Some(packets[close].at),
        )?,
        office: None,
    })
}

/// A document that is opened, and saved by way of a temporary file.
fn find_office(packets: &[CapturedPacket], name: &str) -> Result<FoundTransfer> {
    let creates = |packet: &CapturedPacket, is_wanted: &dyn Fn(&str) -> bool| {
        packet.destination.port() == SMB_PORT
            && smb2::created_name(&packet.payload).is_some_and(|created| is_wanted(&created))
    };
    let open = packets
        .iter()
        .position(|packet| creates(packet, &|created| created == name))
        .context("its CREATE is not there")?;
    let connection = ClientConnection::of_request(&packets[open]);
    let save = packets[open..]
        .iter()
        .position(|packet| {
            connection.is_outward(packet)
                && creates(packet, &|created| created.starts_with(TEMPORARY_PREFIX))
        })
        .map(|index| open + index)
        .context("the CREATE of its temporary file is not there")?;
    let leaves = packets[save..].iter().find(|packet| {
        let command = smb2::command(&packet.payload);
        connection.is_outward(packet)
            && (command == Some(smb2::TREE_DISCONNECT) || command == Some(smb2::LOGOFF))
    });
    let (began, saved) = (packets[open].at, packets[save].at);
    let way = TransferDirection::Download;
    let opened = last_acknowledgement(packets, connection, way, began, Some(saved))?;
    let until = leaves.map(|packet| packet.at);
    let done = last_acknowledgement(packets, connection, way, saved, until)?;
    Ok(FoundTransfer {
        start: began,
        requested: began,
        acknowledged: done,
        office: Some(OfficeTimes {
            open: opened.saturating_sub(began),
            save: done.saturating_sub(saved),
        }),
    })
}

/// Calls to a mailbox, as their first segment shows them.
mod mailbox {
    /// [MS-OXCRPC] §3.1.4: numbers of the methods.
    pub(super) const DISCONNECT: u16 = 1;
    const RPC: u16 = 2;
    const RPC_EXT2: u16 = 11;

    /// [MS-OXCROPS] §2.2.9.3 (RopReadStream).
    const READ_STREAM: u8 = 0x2c;
    /// [MS-OXCRPC] §3.1.4.1.1.1.2 (Obfuscation): each byte is XORed with it.
    const OBFUSCATION: u8 = 0xa5;
    /// [MS-OXCRPC] §2.2.2.1 (RPC_HEADER_EXT): the flag XorMagic.
    const XOR_MAGIC: u16 = 2;

    /// Head of a request PDU of one fragment or of the first one (C706 §12.6.4.9), without flags.
    const REQUEST: [u8; 3] = [5, 0, 0];
    /// Place of the method's number.
    const OPNUM: usize = 22;
    /// Place of the stub, which begins with a context handle of 20 bytes.
    const STUB: usize = 24;

    fn word(segment: &[u8], at: usize) -> Option<u16> {
        let bytes = segment.get(at..at + 2)?;
        Some(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Number of the method, if the segment starts with a request.
    pub(super) fn method(segment: &[u8]) -> Option<u16> {
        segment.starts_with(&REQUEST).then_some(())?;
        word(segment, OPNUM)
    }

    /// Tells whether the segment starts with a call whose first remote operation reads a stream.
    pub(super) fn reads_stream(segment: &[u8]) -> bool {
        let operation = match method(segment) {
            // Behind the handle: three numbers of the array, and the size of the list.
            Some(RPC) => segment
                .get(STUB + 20 + 12 + 2)
                .map(|byte| byte ^ OBFUSCATION),
            // Behind the handle: flags, the size of the array, RPC_HEADER_EXT, and the size of the list.
            Some(RPC_EXT2) => {
                let header = STUB + 20 + 8;
                let mask = match word(segment, header + 2).unwrap_or(0) & XOR_MAGIC {
                    0 => 0,
                    _ => OBFUSCATION,
                };
                segment.get(header + 8 + 2).map(|byte| byte ^ mask)
            }
            _ => None,
        };
        operation == Some(READ_STREAM)
    }
}

/// The attachment that the connection with this number among those that read streams carries.
fn find_mapi(packets: &[CapturedPacket], number: usize) -> Result<FoundTransfer> {
    let mut connections: Vec<(ClientConnection, &CapturedPacket)> = Vec::new();
    for packet in packets {
        if mailbox::reads_stream(&packet.payload) {
            let connection = ClientConnection::of_request(packet);
            if connections.iter().all(|(known, _)| *known != connection) {
                connections.push((connection, packet));
            }
        }
    }
    let (connection, request) = *connections
        .get(number)
        .context("its first RopReadStream is not there")?;
    let opening = packets
        .iter()
        .find(|packet| connection.is_outward(packet) && packet.opens_connection())
        .context("the SYN of its connection is not there")?;
    let end = packets
        .iter()
        .find(|packet| {
            packet.at >= request.at
                && connection.is_outward(packet)
                && mailbox::method(&packet.payload) == Some(mailbox::DISCONNECT)
        })
        .context("its EcDoDisconnect is not there")?;
    Ok(FoundTransfer {
        start: opening.at,
        requested: request.at,
        acknowledged: last_acknowledgement(
            packets,
            connection,
            TransferDirection::Download,
            request.at,
            Some(end.at),
        )?,
        office: None,
    })
}

/// Time of the first acknowledgement of the last byte of data sent on `connection` from `from` (and
/// before `until`).
fn last_acknowledgement(
    packets: &[CapturedPacket],
    connection: ClientConnection,
    way: TransferDirection,
    from: Duration,
    until: Option<Duration>,
) -> Result<Duration> {
    let carries_data = |packet: &CapturedPacket| match way {
        TransferDirection::Download => connection.is_inward(packet),
        TransferDirection::Upload => connection.is_outward(packet),
    };
    let answers = |packet: &CapturedPacket| match way {
        TransferDirection::Download => connection.is_outward(packet),
        TransferDirection::Upload => connection.is_inward(packet),
    };
    let recent = || packets.iter().filter(|packet| packet.at >= from);
    let mut base = None;
    let mut last_byte = 0;
    for packet in recent().filter(|packet| carries_data(packet)) {
        if until.is_some_and(|until| packet.at >= until) {
            break;
        }
        let TransportHeader::Tcp {
            sequence,
            payload_bytes,
            ..
        } = packet.transport
        else {
            continue;
        };
        // Numbers wrap; what counts is how far they are past the first one seen.
        let base = *base.get_or_insert(sequence);
        if payload_bytes > 0 {
            let past = sequence.wrapping_sub(base).wrapping_add(payload_bytes);
            // A retransmission of what came before `from` would look 4 GB ahead.
            if past < u32::MAX / 2 {
                last_byte = last_byte.max(past);
            }
        }
    }
    let base = base.context("its data is not there")?;
    recent()
        .filter(|packet| answers(packet))
        .find(|packet| {
            let TransportHeader::Tcp {
                acknowledgement,
                flags,
                ..
            } = packet.transport
            else {
                return false;
            };
            // A SYN acknowledges nothing: its field is zero, which may be anywhere from `base`.
            let past = acknowledgement.wrapping_sub(base);
            flags & ACK != 0 && past >= last_byte && past < u32::MAX / 2
        })
        .map(|packet| packet.at)
        .context("the last acknowledgement of its data is not there")
}

#[cfg(test)]
mod tests {
    use capture::SYN;

    use super::*;

    fn test_address(last: u8, port: u16) -> SocketAddr {
        ([198, 18, last, 2], port).into()
    }

    const CLIENT: u8 = 1;
    const SERVER: u8 = 2;

    struct PacketScript {
        packets: Vec<CapturedPacket>,
        now: u64,
    }

    impl PacketScript {
        fn new() -> Self {
            Self {
                packets: Vec::new(),
                now: 0,
            }
        }

        fn push(
            &mut self,
            from: (u8, u16),
            to: (u8, u16),
            transport: TransportHeader,
            payload: &[u8],
        ) {
            self.now += 1;
            self.packets.push(CapturedPacket {
                at: Duration::from_millis(self.now),
                source: test_address(from.0, from.1),
                destination: test_address(to.0, to.1),
                ip_bytes: 100,
                transport,
                is_fragment: false,
                payload: payload.to_vec(),
            });
        }

        fn tcp(
            &mut self,
            from: (u8, u16),
            to: (u8, u16),
            (sequence, acknowledgement): (u32, u32),
            payload: &[u8],
            payload_bytes: u32,
        ) {
            let transport = TransportHeader::Tcp {
                sequence,
                acknowledgement,
                flags: 0x10,
                payload_bytes,
            };
            self.push(from, to, transport, payload);
        }

        fn syn(&mut self, from: (u8, u16), to: (u8, u16)) {
            let transport = TransportHeader::Tcp {
                sequence: 0,
                acknowledgement: 0,
                flags: SYN,
                payload_bytes: 0,
            };
            self.push(from, to, transport, b"");
        }

        fn marker(&mut self, edge: MarkerEdge) {
            let marker = WorkloadMarker {
                edge,
                label: "x".to_owned(),
            };
            let payload = marker.payload();
            self.push(
                (CLIENT, 5),
                (SERVER, marker::PORT),
                TransportHeader::Udp,
                payload.as_bytes(),
            );
        }
    }

    #[test]
    fn http_transfer_spans_get_to_last_acknowledgement() {
        let mut script = PacketScript::new();
        script.marker(MarkerEdge::Begin);
        for (name, port) in [("a", 40), ("b", 41)] {
            let (client, server) = ((CLIENT, port), (SERVER, 80));
            let wraps = u32::MAX - 500;
            script.syn(client, server);
            let get = format!("GET /{name} HTTP/1.1\r\n");
            script.tcp(client, server, (1, wraps), get.as_bytes(), 20);
            script.tcp(server, client, (wraps, 21), b"HTTP/1.1 200", 1000);
            script.tcp(client, server, (21, wraps.wrapping_add(600)), b"", 0);
            script.tcp(client, server, (21, wraps.wrapping_add(1000)), b"", 0);
            script.tcp(client, server, (21, wraps.wrapping_add(1001)), b"", 0);
        }
        script.marker(MarkerEdge::End);
        let packets = &script.packets;
        let found = transfers(
            packets,
            packets,
            WorkloadKind::HttpDownload,
            "x",
            &["a", "b"],
        )
        .unwrap();
        assert_eq!(found[0].elapsed(), Duration::from_millis(3));
        assert_eq!(found[1].elapsed(), Duration::from_millis(3));
        assert_eq!(found[0].window, Duration::from_millis(5));
        // Six packets each: the markers are not counted.
        assert_eq!(found[0].wan_bytes, 600);
        assert_eq!(found[1].wan_bytes, 600);
    }

    #[test]
    fn ftp_upload_uses_the_port_of_the_reply() {
        let mut script = PacketScript::new();
        let (control, server) = ((CLIENT, 50), (SERVER, 21));
        let (data, passive) = ((CLIENT, 51), (SERVER, 30_461));
        script.marker(MarkerEdge::Begin);
        script.syn(control, server);
        script.tcp(control, server, (1, 1), b"EPSV\r\n", 6);
        let reply = b"229 Entering Extended Passive Mode (|||30461|)\r\n";
        script.tcp(server, control, (1, 7), reply, 48);
        script.syn(data, passive);
        script.tcp(control, server, (7, 49), b"STOR f\r\n", 8);
        script.tcp(data, passive, (1, 1), b"x", 500);
        script.tcp(passive, data, (1, 501), b"", 0);
        script.tcp(server, control, (49, 15), b"226 done\r\n", 10);
        script.marker(MarkerEdge::End);
        let found = transfers(
            &script.packets,
            &script.packets,
            WorkloadKind::FtpUpload,
            "x",
            &["f"],
        )
        .unwrap();
        assert_eq!(found[0].elapsed(), Duration::from_millis(2));
        assert_eq!(found[0].wan_bytes, 800);
        assert_eq!(
            passive_port(b"227 Entering Passive Mode (198,18,2,2,118,253).\r\n"),
            Some(30_461)
        );
    }

    /// A request PDU of this method whose stub has these bytes behind the context handle.
    fn rpc_request(opnum: u16, behind_handle: &[u8]) -> Vec<u8> {
        let mut pdu = vec![5, 0, 0, 3, 0x10, 0, 0, 0];
        pdu.resize(22, 0);
        pdu.extend(opnum.to_le_bytes());
        pdu.resize(44, 7);
        pdu.extend(behind_handle);
        pdu
    }

    /// EcDoRpc or EcDoRpcExt2 with one remote operation.
    fn mailbox_call(opnum: u16, operation: u8) -> Vec<u8> {
        let mut behind = match opnum {
            2 => vec![9, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0],
            _ => vec![0, 0, 0, 0, 20, 0, 0, 0, 0, 0, 6, 0, 9, 0, 9, 0],
        };
        behind.extend([9, 0, operation, 0, 1, 2, 3].map(|byte: u8| byte ^ 0xa5));
        rpc_request(opnum, &behind)
    }

    #[test]
    fn attachment_spans_first_read_to_last_acknowledgement() {
        for opnum in [2, 11] {
            let mut script = PacketScript::new();
            script.marker(MarkerEdge::Begin);
            for port in [5000, 5001] {
                let (client, server) = ((CLIENT, port), (SERVER, 40_001));
                script.syn(client, server);
                // A call that opens the stream, its answer, and two reads.
                script.tcp(client, server, (1, 1), &mailbox_call(opnum, 0x2b), 79);
                script.tcp(server, client, (1, 80), b"", 50);
                script.tcp(client, server, (80, 51), &mailbox_call(opnum, 0x2c), 79);
                script.tcp(server, client, (51, 160), b"", 1000);
                script.tcp(client, server, (160, 1051), &mailbox_call(opnum, 0x2c), 79);
                script.tcp(server, client, (1051, 240), b"", 500);
                script.tcp(client, server, (240, 1551), b"", 0);
                script.tcp(client, server, (240, 1551), &rpc_request(1, &[]), 60);
                script.tcp(server, client, (1551, 300), b"", 60);
                script.tcp(client, server, (300, 1611), b"", 0);
            }
            script.marker(MarkerEdge::End);
            let found = transfers(
                &script.packets,
                &script.packets,
                WorkloadKind::MapiXp,
                "x",
                &["one", "two"],
            )
            .unwrap();
            assert_eq!(found.len(), 2);
            for transfer in found {
                // The last answer's acknowledgement is four packets behind the first read.
                let took = transfer.elapsed();
                assert_eq!(took, Duration::from_millis(4), "{opnum}");
            }
        }
    }

    #[test]
    fn a_syn_acknowledges_nothing() {
        let mut script = PacketScript::new();
        let (control, server) = ((CLIENT, 50), (SERVER, 21));
        let (data, passive) = ((CLIENT, 51), (SERVER, 30_461));
        // A number in the upper half, which the zero in a SYN seems to acknowledge.
        let first = 0xf000_0000;
        script.marker(MarkerEdge::Begin);
        script.tcp(control, server, (1, 1), b"EPSV\r\n", 6);
        let reply = b"229 Entering Extended Passive Mode (|||30461|)\r\n";
        script.tcp(server, control, (1, 7), reply, 48);
        script.syn(data, passive);
        script.tcp(control, server, (7, 49), b"RETR f\r\n", 8);
        script.tcp(passive, data, (first, 1), b"x", 500);
        script.tcp(data, passive, (1, first + 500), b"", 0);
        script.marker(MarkerEdge::End);
        let packets = &script.packets;
        let found = transfers(packets, packets, WorkloadKind::FtpDownload, "x", &["f"]).unwrap();
        assert_eq!(found[0].elapsed(), Duration::from_millis(2));
    }

    fn smb_message(command: u16) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 100];
        bytes.extend(b"\xfeSMB");
        bytes.extend([0; 8]);
        bytes.extend(command.to_le_bytes());
        bytes.resize(4 + 64, 0);
        bytes
    }

    fn smb_create(name: &str) -> Vec<u8> {
        let mut create = smb_message(smb2::CREATE);
        create.resize(4 + 64 + 56, 0);
        create[4 + 64 + 44] = 120;
        create[4 + 64 + 46] = u8::try_from(2 * name.len()).unwrap();
        create.extend(name.bytes().flat_map(|letter| [letter, 0]));
        create
    }

    #[test]
    fn an_smb_download_ends_before_its_close() {
        let create = smb_create("fg");
        assert!(smb2::creates(&create, "fg"));
        assert!(!smb2::creates(&create, "g"));
        let (client, server) = ((CLIENT, 50), (SERVER, 445));
        let mut script = PacketScript::new();
        script.marker(MarkerEdge::Begin);
        script.syn(client, server);
        script.tcp(client, server, (1, 1), &create, 128);
        script.tcp(server, client, (1, 129), b"", 156);
        script.tcp(client, server, (129, 157), &smb_message(smb2::READ), 117);
        script.tcp(server, client, (157, 246), b"data", 1000);
        script.tcp(client, server, (246, 1157), &smb_message(smb2::CLOSE), 92);
        script.tcp(server, client, (1157, 338), b"closed", 128);
        script.marker(MarkerEdge::End);
        let found = transfers(
            &script.packets,
            &script.packets,
            WorkloadKind::SmbDownload,
            "x",
            &["fg"],
        )
        .unwrap();
        assert_eq!(found[0].elapsed(), Duration::from_millis(2));
    }

    #[test]
    fn document_opens_and_saves_around_its_temporary_file() {
        let (client, server) = ((CLIENT, 50), (SERVER, 445));
        let mut script = PacketScript::new();
        script.marker(MarkerEdge::Begin);
        script.syn(client, server);
        script.tcp(client, server, (1, 1), &smb_create("fg"), 128);
        script.tcp(server, client, (1, 129), b"opened", 100);
        script.tcp(client, server, (129, 101), &smb_message(smb2::READ), 100);
        script.tcp(server, client, (101, 229), b"data", 1000);
        script.tcp(client, server, (229, 1101), b"", 0);
        script.tcp(client, server, (229, 1101), &smb_create("~WRD1.tmp"), 100);
        script.tcp(server, client, (1101, 329), b"made", 100);
        script.tcp(client, server, (329, 1201), &smb_message(smb2::WRITE), 500);
        script.tcp(server, client, (1201, 829), b"written", 100);
        let leave = smb_message(smb2::TREE_DISCONNECT);
        script.tcp(client, server, (829, 1301), &leave, 80);
        script.tcp(server, client, (1301, 909), b"gone", 80);
        script.tcp(client, server, (909, 1381), b"", 0);
        script.marker(MarkerEdge::End);
        let packets = &script.packets;
        let found = transfers(packets, packets, WorkloadKind::SmbOffice, "x", &["fg"]).unwrap();
        let office = found[0].office.unwrap();
        assert_eq!(office.open, Duration::from_millis(4));
        assert_eq!(office.save, Duration::from_millis(4));
        assert_eq!(found[0].elapsed(), Duration::from_millis(8));
    }

    #[test]
    fn missing_programs_are_named() {
        let mut script = PacketScript::new();
        script.marker(MarkerEdge::Begin);
        script.marker(MarkerEdge::End);
        let packets = &script.packets;
        let error =
            transfers(packets, packets, WorkloadKind::HttpDownload, "x", &["a"]).unwrap_err();
        assert!(format!("{error:#}").contains("its GET is not there"));
        let error =
            transfers(packets, packets, WorkloadKind::HttpDownload, "y", &["a"]).unwrap_err();
        assert!(format!("{error:#}").contains("no two markers"));
    }
}
