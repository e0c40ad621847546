//! Packets that the rules log for this node (nfnetlink_log, kernel source `include/uapi/linux/netfilter/nfnetlink_log.h`).
//!
//! A rule `log group N` hands a copy of the packet to the process that has bound the group. The
//! messages are netlink's: a header, then attributes, in the machine's byte order except where
//! nfnetlink marks the network's. The group is the number of a port that this node has bound, so
//! that two nodes in one network namespace do not receive each other's packets.
//!
//! The parsers accept any bytes, although only the kernel can send to this socket.

use std::io::{self, Read, Write};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;

use crate::sys;

/// `NFNL_SUBSYS_ULOG` in the upper byte of a message's type.
const SUBSYSTEM: u16 = 4 << 8;
/// `NFULNL_MSG_PACKET` and `NFULNL_MSG_CONFIG` in the lower byte.
const MESSAGE_PACKET: u16 = SUBSYSTEM;
const MESSAGE_CONFIG: u16 = SUBSYSTEM | 1;
const NLMSG_ERROR: u16 = 2;
const REQUEST_AND_ACKNOWLEDGE: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const NETLINK_HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;

// Attributes of configuration.
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_QUEUE_THRESHOLD: u16 = 5;
const COMMAND_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;

// Attributes of a packet.
const PACKET_PAYLOAD: u16 = 9;
const PACKET_PREFIX: u16 = 10;

/// The size of the kernel's buffer: 2,000 SYNs with the kernel's own structures beside them.
const KERNEL_BUFFER: usize = 2 << 20;
/// A message holds one packet with the threshold that is set here; more is cut.
const MESSAGE_BYTES: usize = 70_000;

/// A packet and the log prefix that its rule gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedPacket<'a> {
    pub(super) prefix: &'a [u8],
    pub(super) packet: &'a [u8],
}

/// The socket on which the packets of one group arrive.
#[derive(Debug)]
pub(super) struct PacketLog {
    socket: Socket,
}

impl PacketLog {
    /// Binds a group.
    ///
    /// # Errors
    /// When the kernel has no nfnetlink_log or CAP_NET_ADMIN is missing.
    pub(super) fn bind(group: u16) -> io::Result<Self> {
        let domain = Domain::from(libc::AF_NETLINK);
        let protocol = Protocol::from(libc::NETLINK_NETFILTER);
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        // What is lost by a shorter buffer is sent again by the clients.
        let _ = socket.set_recv_buffer_size(KERNEL_BUFFER);
        let log = Self { socket };
        log.configure(group, CONFIG_COMMAND, &[COMMAND_BIND])?;
        let range = u32::from(u16::MAX).to_be_bytes();
        let mode = [range[0], range[1], range[2], range[3], COPY_PACKET, 0];
        log.configure(group, CONFIG_MODE, &mode)?;
        // A packet is told at once; the kernel would otherwise gather 100, for a second at most.
        log.configure(group, CONFIG_QUEUE_THRESHOLD, &1_u32.to_be_bytes())?;
        log.socket.set_nonblocking(true)?;
        Ok(log)
    }

    /// Has the runtime that this is called in wait for the socket.
    ///
    /// # Errors
    /// When the runtime cannot.
    pub(super) fn into_reader(self) -> io::Result<PacketLogReader> {
        Ok(PacketLogReader {
            socket: sys::waited_for(self.socket)?,
            buffer: vec![0; MESSAGE_BYTES],
        })
    }

    fn configure(&self, group: u16, attribute: u16, value: &[u8]) -> io::Result<()> {
        (&self.socket).write_all(&configuration(group, attribute, value))?;
        let mut answer = [0; 1024];
        let length = (&self.socket).read(&mut answer)?;
        acknowledged(&answer[..length])
    }
}

/// Reads the logged packets.
#[derive(Debug)]
pub(super) struct PacketLogReader {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl PacketLogReader {
    /// Waits for the next message and returns its packets.
    ///
    /// # Errors
    /// When the socket cannot be read any more.
    pub(super) async fn read(&mut self) -> io::Result<Vec<LoggedPacket<'_>>> {
        let length = loop {
            let mut ready = self.socket.readable().await?;
            let buffer = &mut self.buffer;
            match ready.try_io(|socket| socket.get_ref().read(buffer)) {
                Ok(Ok(length)) => break length,
                // Packets came faster than they were read, and some are lost.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        };
        Ok(packets(&self.buffer[..length]))
    }
}

/// A message that sets one attribute of a group.
fn configuration(group: u16, attribute: u16, value: &[u8]) -> Vec<u8> {
    let attribute_length = ATTRIBUTE_HEADER + value.len();
    let length = NETLINK_HEADER + NETFILTER_HEADER + attribute_length.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&(length as u32).to_ne_bytes());
    message.extend_from_slice(&MESSAGE_CONFIG.to_ne_bytes());
    message.extend_from_slice(&REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    // The sequence number and the kernel's port.
    message.extend_from_slice(&[0; 8]);
    // Any family, version 0, and the group in the network's byte order.
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(&group.to_be_bytes());
    message.extend_from_slice(&(attribute_length as u16).to_ne_bytes());
    message.extend_from_slice(&attribute.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(length, 0);
    message
}

/// Checks the kernel's answer to a configuration message.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let is_error = kind(answer) == Some(NLMSG_ERROR);
    let number = answer.get(NETLINK_HEADER..).and_then(<[u8]>::first_chunk);
    match number.map(|bytes| i32::from_ne_bytes(*bytes)) {
        Some(0) if is_error => Ok(()),
        Some(number) if is_error => Err(io::Error::from_raw_os_error(-number)),
        Some(_) | None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The type of the message that begins here.
fn kind(message: &[u8]) -> Option<u16> {
    let bytes = message.get(4..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

/// The packets among netlink messages.
fn packets(mut bytes: &[u8]) -> Vec<LoggedPacket<'_>> {
    let mut packets = Vec::new();
    while let Some(length) = bytes
        .first_chunk()
        .map(|length| u32::from_ne_bytes(*length))
    {
        let length = length as usize;
        let Some(message) = bytes.get(..length).filter(|_| length >= NETLINK_HEADER) else {
            break;
        };
        if kind(message) == Some(MESSAGE_PACKET) {
            packets.extend(packet(message));
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    packets
}

fn packet(message: &[u8]) -> Option<LoggedPacket<'_>> {
    let mut attributes = message.get(NETLINK_HEADER + NETFILTER_HEADER..)?;
    let mut logged = LoggedPacket {
        prefix: &[],
        packet: &[],
    };
    while let Some(&[length0, length1, kind0, kind1]) = attributes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([length0, length1]));
        let value = attributes.get(ATTRIBUTE_HEADER..length)?;
        match u16::from_ne_bytes([kind0, kind1]) {
            PACKET_PAYLOAD => logged.packet = value,
            PACKET_PREFIX => logged.prefix = value.strip_suffix(&[0]).unwrap_or(value),
            _ => {}
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    (!logged.packet.is_empty()).then_some(logged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((ATTRIBUTE_HEADER + value.len()) as u16)
            .to_ne_bytes()
            .to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
        let length = NETLINK_HEADER + NETFILTER_HEADER + attributes.len();
        let mut bytes = (length as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.resize(NETLINK_HEADER + NETFILTER_HEADER, 0);
        bytes.extend_from_slice(attributes);
        bytes
    }

    #[test]
    fn message_yields_its_packet_and_prefix() {
        let attributes = [
            attribute(1, &[0x08, 0, 1, 0]),
            attribute(PACKET_PREFIX, b"held\0"),
            attribute(PACKET_PAYLOAD, b"packet"),
        ];
        let mut bytes = message(MESSAGE_PACKET, &attributes.concat());
        bytes.extend(message(NLMSG_ERROR, &[]));
        bytes.extend(message(
            MESSAGE_PACKET,
            &attribute(PACKET_PAYLOAD, b"other"),
        ));
        let read = packets(&bytes);
        let expected: [(&[u8], &[u8]); 2] = [(b"held", b"packet"), (b"", b"other")];
        let read: Vec<_> = read.iter().map(|one| (one.prefix, one.packet)).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn a_configuration_is_padded_and_names_its_group() {
        let bytes = configuration(4434, CONFIG_COMMAND, &[COMMAND_BIND]);
        assert_eq!(bytes.len(), 28);
        assert_eq!(bytes[18..20], 4434_u16.to_be_bytes());
        assert_eq!(bytes[24..], [COMMAND_BIND, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            length in 0_u32..300,
        ) {
            let _ = packets(&bytes);
            let mut bytes = message(MESSAGE_PACKET, &bytes);
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            let _ = packets(&bytes);
            let _ = acknowledged(&bytes);
        }
    }
}
