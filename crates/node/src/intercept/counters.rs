//! Reads the named counters of a table by netlink (`linux/netfilter/nf_tables.h`), because starting
//! `nft` several times a second costs far more.
//!
//! The request is `NFT_MSG_GETOBJ` as a dump of the table's counters. The kernel answers with
//! `NFT_MSG_NEWOBJ` for each counter, then `NLMSG_DONE`. Netlink uses the machine's byte order, its
//! attributes for nf_tables the network's.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// `NETLINK_NETFILTER`.
const NETLINK_NETFILTER: i32 = 12;
/// `NFNL_SUBSYS_NFTABLES` in the upper byte of a message's type.
const NFTABLES: u16 = 10 << 8;
/// `NFT_MSG_GETOBJ` and `NFT_MSG_NEWOBJ`.
const GET_OBJECT: u16 = NFTABLES | 19;
const NEW_OBJECT: u16 = NFTABLES | 18;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x1 | 0x300;
/// `NLM_F_DUMP_INTR`: the objects changed while they were listed.
const INTERRUPTED: u16 = 0x10;
/// `NFPROTO_INET`.
const FAMILY_INET: u8 = 1;
/// `NFTA_OBJ_TABLE`, `NFTA_OBJ_NAME`, `NFTA_OBJ_TYPE`, `NFTA_OBJ_DATA`.
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_TYPE: u16 = 3;
const OBJECT_DATA: u16 = 4;
/// `NFT_OBJECT_COUNTER`.
const COUNTER: u32 = 1;
/// `NFTA_COUNTER_PACKETS`.
const COUNTER_PACKETS: u16 = 2;
/// `NLA_TYPE_MASK`: without the flags of an attribute's type.
const TYPE_MASK: u16 = 0x3fff;

/// `struct nlmsghdr` and, behind it, `struct nfgenmsg`.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
/// The kernel fills at most 32 KiB at once for a dump.
const BUFFER: usize = 64 * 1024;
/// The kernel answers at once; this only keeps a fault from hanging the caller.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Answers to one request: far more than a table of this program has counters.
const ANSWERS_MAX: usize = 64;

/// Packets by the counter's name.
pub(super) type PacketCounts = BTreeMap<String, u64>;

/// A socket to nf_tables.
#[derive(Debug)]
pub(super) struct CounterReader {
    socket: Socket,
    sequence: u32,
}

impl CounterReader {
    /// Opens it.
    ///
    /// # Errors
    /// When the system gives no such socket.
    pub(super) fn open() -> io::Result<Self> {
        let socket = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW,
            Some(Protocol::from(NETLINK_NETFILTER)),
        )?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Returns the counters of a table of family inet; none if there is no such table.
    ///
    /// # Errors
    /// When the kernel refuses, or the table changed meanwhile.
    pub(super) fn read(&mut self, table: &str) -> io::Result<PacketCounts> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(table, self.sequence))?;
        let mut counts = PacketCounts::new();
        let mut buffer = vec![0; BUFFER];
        for _ in 0..ANSWERS_MAX {
            let length = (&self.socket).read(&mut buffer)?;
            if take_answer(&buffer[..length], self.sequence, &mut counts)? == DumpProgress::Complete
            {
                return Ok(counts);
            }
        }
        Err(invalid("the list of counters does not end"))
    }
}

/// The progress of the kernel's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpProgress {
    GoesOn,
    Complete,
}

fn request(table: &str, sequence: u32) -> Vec<u8> {
    let mut body = vec![FAMILY_INET, 0, 0, 0];
    let mut name = table.as_bytes().to_vec();
    name.push(0);
    push_attribute(&mut body, OBJECT_TABLE, &name);
    push_attribute(&mut body, OBJECT_TYPE, &COUNTER.to_be_bytes());
    let length = u32::try_from(HEADER + body.len()).expect("a table's name is short");
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(length.to_ne_bytes());
    message.extend(GET_OBJECT.to_ne_bytes());
    message.extend(REQUEST_DUMP.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The port of the sender: the kernel knows it.
    message.extend(0_u32.to_ne_bytes());
    message.extend(body);
    message
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("values are short");
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Parses the result of one read: one or more messages.
fn take_answer(
    mut bytes: &[u8],
    sequence: u32,
    counts: &mut PacketCounts,
) -> io::Result<DumpProgress> {
    while bytes.len() >= HEADER {
        let length = u32_at(bytes, 0).unwrap_or(0) as usize;
        if length < HEADER || length > bytes.len() {
            return Err(invalid("a netlink message is cut off"));
        }
        let message = &bytes[..length];
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        let (kind, flags) = (
            u16_at(message, 4).unwrap_or(0),
            u16_at(message, 6).unwrap_or(0),
        );
        // The rest of an answer that an earlier request did not wait for.
        if u32_at(message, 8) != Some(sequence) {
            continue;
        }
        if flags & INTERRUPTED != 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match kind {
            DONE => return Ok(DumpProgress::Complete),
            ERROR => {
                let code = u32_at(message, HEADER).unwrap_or(0) as i32;
                return match code.wrapping_neg() {
                    0 => Ok(DumpProgress::Complete),
                    libc::ENOENT => Ok(DumpProgress::Complete),
                    code => Err(io::Error::from_raw_os_error(code)),
                };
            }
            NEW_OBJECT => {
                let attributes = message.get(HEADER + GENERIC_HEADER..).unwrap_or(&[]);
                if let Some((name, packets)) = counter(attributes) {
                    counts.insert(name, packets);
                }
            }
            _ => {}
        }
    }
    Ok(DumpProgress::GoesOn)
}

fn counter(bytes: &[u8]) -> Option<(String, u64)> {
    let name = attribute(bytes, OBJECT_NAME)?;
    let name = name.strip_suffix(&[0]).unwrap_or(name);
    let data = attribute(bytes, OBJECT_DATA)?;
    let packets = attribute(data, COUNTER_PACKETS)?.first_chunk::<8>()?;
    Some((
        String::from_utf8_lossy(name).into_owned(),
        u64::from_be_bytes(*packets),
    ))
}

/// The value of the first attribute of this type.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_ne_bytes(*bytes))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(2_u16.to_ne_bytes());
        message.extend(sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        message
    }

    fn object(name: &str, packets: u64) -> Vec<u8> {
        let mut data = Vec::new();
        push_attribute(&mut data, 1, &7_u64.to_be_bytes());
        push_attribute(&mut data, COUNTER_PACKETS, &packets.to_be_bytes());
        let mut body = vec![FAMILY_INET, 0, 0, 0];
        push_attribute(&mut body, OBJECT_TABLE, b"trunkline_near\0");
        push_attribute(&mut body, OBJECT_NAME, format!("{name}\0").as_bytes());
        push_attribute(&mut body, OBJECT_TYPE, &COUNTER.to_be_bytes());
        // NLA_F_NESTED.
        push_attribute(&mut body, OBJECT_DATA | 0x8000, &data);
        body
    }

    #[test]
    fn counters_are_read_from_several_messages() {
        let mut counts = PacketCounts::new();
        let mut first = message(NEW_OBJECT, 7, &object("syns_taken4", 12));
        first.extend(message(NEW_OBJECT, 7, &object("rule_1", 3)));
        first.extend(message(NEW_OBJECT, 6, &object("of_another_request", 1)));
        assert_eq!(
            take_answer(&first, 7, &mut counts).unwrap(),
            DumpProgress::GoesOn
        );
        let end = message(DONE, 7, &[0; 4]);
        assert_eq!(
            take_answer(&end, 7, &mut counts).unwrap(),
            DumpProgress::Complete
        );
        let expected = [("rule_1".to_owned(), 3), ("syns_taken4".to_owned(), 12)];
        assert_eq!(counts, PacketCounts::from(expected));
    }

    #[test]
    fn kernel_error_fails_and_missing_table_is_empty() {
        let mut counts = PacketCounts::new();
        let denied = message(ERROR, 7, &(-libc::EPERM).to_ne_bytes());
        let error = take_answer(&denied, 7, &mut counts).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let missing = message(ERROR, 7, &(-libc::ENOENT).to_ne_bytes());
        assert_eq!(
            take_answer(&missing, 7, &mut counts).unwrap(),
            DumpProgress::Complete
        );
    }

    #[test]
    fn cut_messages_are_errors_and_never_a_panic() {
        let whole = message(NEW_OBJECT, 7, &object("syns_taken4", 12));
        for length in 0..whole.len() {
            let mut counts = PacketCounts::new();
            let _ = take_answer(&whole[..length], 7, &mut counts);
            assert!(counts.is_empty());
            let mut bent = whole.clone();
            bent[length] = 0xff;
            let _ = take_answer(&bent, 7, &mut counts);
        }
    }
}
