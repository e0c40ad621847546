//! ICMP echoes from the client to the server: the 2006 report's check of a link before and after a test.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::{LabSite, LabTopology};
use host::{kernel, wait};

/// Echo requests of one check.
const REQUESTS: u16 = 3;
/// Interval between them.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time after the last request in which replies may arrive, beside the round trip.
const REPLY_LIMIT: Duration = Duration::from_millis(500);
/// Time for which one read waits.
const READ_LIMIT: Duration = Duration::from_millis(20);
/// Types of ICMP messages (RFC 792, Echo or Echo Reply Message).
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Header and data of an echo; with the IP header 84 bytes, as `ping` sends.
const ECHO_BYTES: usize = 64;
/// Identifier of the lab's echoes.
const IDENTIFIER: u16 = 0x7472;

/// Sends echo requests and returns the round trips of those that were answered, in milliseconds.
///
/// # Errors
/// Fails when the socket cannot be opened in the client's namespace, or the lab is interrupted.
pub fn ping(topology: &LabTopology, round_trip: Duration) -> Result<Vec<f64>> {
    let server = SocketAddr::from((LabSite::Far.host_address(), 0)).into();
    let socket = kernel::in_network_namespace(&topology.namespace_file("client"), || {
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))
    })
    .context("opening a socket for ICMP in the client's namespace")?;
    socket.set_read_timeout(Some(READ_LIMIT))?;
    let began = Instant::now();
    let end = INTERVAL * u32::from(REQUESTS) + round_trip + REPLY_LIMIT;
    let mut sent: Vec<Instant> = Vec::new();
    let mut round_trips: Vec<Option<f64>> = vec![None; usize::from(REQUESTS)];
    let mut buffer = [0; 512];
    while began.elapsed() < end && round_trips.iter().any(Option::is_none) {
        wait::not_interrupted()?;
        let next = sent.len() as u16;
        if next < REQUESTS && began.elapsed() >= INTERVAL * u32::from(next) {
            sent.push(Instant::now());
            socket.send_to(&request(next), &server)?;
        }
        let length = match (&socket).read(&mut buffer) {
            Ok(length) => length,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error).context("reading ICMP replies"),
        };
        if let Some(number) = reply(&buffer[..length])
            && let (Some(at), Some(place)) = (
                sent.get(usize::from(number)),
                round_trips.get_mut(usize::from(number)),
            )
        {
            place.get_or_insert(at.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(round_trips.into_iter().flatten().collect())
}

/// An echo request with this sequence number.
fn request(number: u16) -> [u8; ECHO_BYTES] {
    let mut message = [0; ECHO_BYTES];
    message[0] = ECHO;
    message[4..6].copy_from_slice(&IDENTIFIER.to_be_bytes());
    message[6..8].copy_from_slice(&number.to_be_bytes());
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Sequence number of a reply to the lab's request, in a packet with its IPv4 header.
fn reply(packet: &[u8]) -> Option<u16> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let message = packet.get(header..)?.first_chunk::<8>()?;
    let is_ours = message[0] == ECHO_REPLY && message[4..6] == IDENTIFIER.to_be_bytes();
    is_ours.then(|| u16::from_be_bytes([message[6], message[7]]))
}

/// RFC 1071 §1 (Introduction): the complement of the sum of all 16-bit words.
fn checksum(message: &[u8]) -> u16 {
    let words = message.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_a_valid_checksum() {
        // The sum over a message with its check sum is zero.
        assert_eq!(checksum(&request(2)), 0);
    }

    #[test]
    fn reply_to_another_program_is_ignored() {
        let packet = |kind: u8, identifier: u16| {
            let mut packet = vec![0; 28];
            packet[0] = 0x45;
            packet[20] = kind;
            packet[24..26].copy_from_slice(&identifier.to_be_bytes());
            packet[27] = 1;
            packet
        };
        assert_eq!(reply(&packet(ECHO_REPLY, IDENTIFIER)), Some(1));
        assert_eq!(reply(&packet(ECHO_REPLY, 7)), None);
        assert_eq!(reply(&packet(ECHO, IDENTIFIER)), None);
        assert_eq!(reply(&packet(ECHO_REPLY, IDENTIFIER)[..27]), None);
    }
}
